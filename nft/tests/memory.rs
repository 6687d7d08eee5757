//! What `nft::memory` promises, in a process with one thread: the memory of large blocks goes back to the system, also after a larger block
//! was freed.

use std::fs;
use std::hint::black_box;

const MIB: usize = 1 << 20;

fn main() {
    assert!(
        kept() > 15 * MIB,
        "glibc keeps blocks that are smaller than one that was freed, or this test shows nothing"
    );
    nft::memory::give_back_large_blocks();
    let kept = kept();
    assert!(kept < 2 * MIB, "{kept} bytes of freed blocks stay with the process");
    println!("large blocks go back to the system: ok");
}

/// How much more memory the process has after it freed large blocks than before it allocated them. A small block behind them stays: without
/// it, glibc would give the end of its heap back in any case.
fn kept() -> usize {
    drop(black_box(vec![1_u8; 24 * MIB]));
    let before = resident();
    let blocks: Vec<Vec<u8>> = (0..8).map(|_| vec![1_u8; 2 * MIB]).collect();
    let small = vec![1_u8; 64];
    drop(black_box(blocks));
    let kept = resident().saturating_sub(before);
    drop(black_box(small));
    kept
}

/// The process's resident memory in bytes.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    line.and_then(|line| line.parse::<usize>().ok()).expect("the line VmRSS in kB") * 1024
}
