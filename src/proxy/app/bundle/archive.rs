//! A tar archive, compressed with gzip, that is written file by file.
//!
//! Takes names and contents, and writes the POSIX format `ustar`. All files are in one folder, belong to root, and have mode 0600.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

/// Tar writes in blocks of this size.
const BLOCK: usize = 512;
/// The longest path that fits into the field for the name in a header.
const PATH: usize = 100;

/// An archive that is being written.
pub(super) struct Archive<W: Write> {
    writer: GzEncoder<W>,
    folder: String,
    /// The time of all files, in seconds since 1970.
    time: u64,
}

impl<W: Write> Archive<W> {
    /// Begins an archive whose files are in this folder.
    pub(super) fn new(writer: W, folder: &str, time: u64) -> Self {
        Self { writer: GzEncoder::new(writer, Compression::fast()), folder: folder.to_owned(), time }
    }

    /// Adds a file.
    ///
    /// # Errors
    /// When the archive cannot be written, or the path has more than 100 bytes.
    pub(super) fn add(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let path = format!("{}/{name}", self.folder);
        if path.len() > PATH {
            return Err(io::Error::other(format!("the path {path} is too long for an archive")));
        }
        self.writer.write_all(&header(&path, content.len(), self.time))?;
        self.writer.write_all(content)?;
        let rest = content.len().next_multiple_of(BLOCK) - content.len();
        self.writer.write_all(&[0; BLOCK][..rest])
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.writer.write_all(&[0; 2 * BLOCK])?;
        self.writer.finish()?.flush()
    }
}

/// Returns the header of a file in the format `ustar`. `time` is in seconds since 1970.
fn header(path: &str, size: usize, time: u64) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, path);
    put(100, "0000600");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{size:011o}"));
    put(136, &format!("{time:011o}"));
    // The checksum is the sum of the header's bytes, with spaces in the field of the checksum itself.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().copied().map(u32::from).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn files_stand_in_whole_blocks_behind_headers_with_the_right_sum() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes, "folder", 0o17);
        archive.add("one", b"first").unwrap();
        archive.add("empty", b"").unwrap();
        assert!(archive.add(&"x".repeat(PATH), b"").is_err(), "a path that does not fit");
        archive.finish().unwrap();
        let mut tar = Vec::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut tar).unwrap();
        assert_eq!(tar.len(), 5 * BLOCK, "two headers, one block of content, two blocks of zeros");
        assert!(
            tar.starts_with(b"folder/one\0") && tar[124..136] == *b"00000000005\0" && tar[136..147] == *b"00000000017"
        );
        assert_eq!(&tar[BLOCK..BLOCK + 6], b"first\0");
        let sum: u32 = tar[..148].iter().chain(&tar[156..BLOCK]).copied().map(u32::from).sum::<u32>() + 8 * 32;
        assert_eq!(tar[148..156], *format!("{sum:06o}\0 ").as_bytes());
        assert!(tar[2 * BLOCK..].starts_with(b"folder/empty\0"));
    }
}
