//! Opens files that other programs may replace at any time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file for reading, and never waits: a file that becomes a named pipe in the meantime is refused, and so is a device.
///
/// # Errors
/// Returns the system's error, or one of kind [`ErrorKind::InvalidInput`] if this is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Opening a device may have an effect, so look before opening. The file may be replaced after that.
    refuse_others(&fs::metadata(path)?)?;
    // Without NONBLOCK, `open` waits for a pipe's writer. With NOCTTY, a terminal does not become the controlling terminal.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    refuse_others(&file.metadata()?)?;
    Ok(file)
}

fn refuse_others(metadata: &fs::Metadata) -> io::Result<()> {
    if metadata.is_file() { Ok(()) } else { Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file")) }
}
