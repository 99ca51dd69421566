//! Trees made for tests: of given sizes, and with every kind of name and file that DESIGN section 8 speaks
//! of.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::Random;

/// Files of one directory.
const DIRECTORY_FILES: usize = 100;

/// Bytes that nobody else has.
pub fn content(random: &mut Random, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; size as usize];
    random.fill(&mut bytes);
    bytes
}

/// `files` files with `bytes` bytes together, from empty to a good part of the whole: most are small, most
/// bytes are in large ones. The same numbers and seed give the same tree.
pub fn make(root: &Path, files: usize, bytes: u64, random: &mut Random) {
    let weights: Vec<u64> = (0..files)
        .map(|_| {
            let scale = 1u64 << random.below(16);
            if random.below(50) == 0 { 0 } else { scale + random.below(scale) }
        })
        .collect();
    let all: u64 = weights.iter().sum::<u64>().max(1);
    for (place, weight) in weights.iter().enumerate() {
        let size = (u128::from(*weight) * u128::from(bytes) / u128::from(all)) as u64;
        write_numbered(root, place, &content(random, size));
    }
}

/// `files` files of one size: where their number has to stand for bytes.
pub fn make_uniform(root: &Path, files: usize, file_bytes: u64, random: &mut Random) {
    for place in 0..files {
        write_numbered(root, place, &content(random, file_bytes));
    }
}

fn write_numbered(root: &Path, place: usize, content: &[u8]) {
    let directory = root.join(format!("run{:02}", place / DIRECTORY_FILES));
    fs::create_dir_all(&directory).expect("a directory");
    fs::write(directory.join(format!("f{place:05}.dat")), content).expect("a file");
}

/// Adds everything odd below `root`; returns how many of it must arrive.
pub fn add_odd(root: &Path) -> usize {
    let odd = root.join("odd");
    fs::create_dir_all(&odd).expect("a directory");
    let mut files = 0;
    let mut file = |name: &[u8], bytes: &[u8]| {
        let path = odd.join(OsStr::from_bytes(name));
        fs::create_dir_all(path.parent().expect("below odd")).expect("a directory");
        fs::write(path, bytes).expect("a file");
        files += 1;
    };
    file(b"two\nlines", b"newline");
    file(b" leading and trailing ", b"spaces");
    file("größe 測試 😀".as_bytes(), b"unicode");
    // The same to the eye, and two names to us: nothing is normalised.
    file("e\u{301}".as_bytes(), b"decomposed");
    file("\u{e9}".as_bytes(), b"composed");
    file(&[b'x'; 255], b"longest component");
    file("ü".repeat(127).as_bytes(), b"long in bytes");
    file(b"Case", b"upper");
    file(b"case", b"lower");
    file(b"empty", b"");
    file(b"-rf", b"dash");
    file(b"quote\"'`$(id)\\;&|*?", b"shell");
    file(b"\x1b[2J\x07\x7f\x01", b"terminal");
    file("\u{202e}txt.exe\u{200b}".as_bytes(), b"bidi");
    file(b"%2e%2e%2f&a=b#c+d", b"url");
    file(
        b"<script>alert(1)</script>".map(|byte| if byte == b'/' { b'\\' } else { byte }).as_slice(),
        b"markup",
    );
    file(b"...", b"dots");
    file(b".hidden/.longhaul/x", b"a name like our own, elsewhere");
    file(&[b"d/".repeat(60).as_slice(), b"deep"].concat(), b"deep");
    // A path of 1,024 bytes in all, with "odd/" before it.
    let long: Vec<u8> = [[b'p'; 200].as_slice()].repeat(5).join(&b'/');
    file(&[long.as_slice(), b"/".as_slice(), &[b'q'; 1024 - 4 - 1004 - 1]].concat(), b"longest path");

    symlink("case", odd.join("link to a file")).expect("a link");
    symlink("../odd/d", odd.join("link to a directory")).expect("a link");
    symlink("link to a file", odd.join("link to a link")).expect("a link");
    files += 2;
    symlink("/etc/hostname", odd.join("link out")).expect("a link");
    symlink("../../outside", odd.join("link up and out to nothing")).expect("a link");
    symlink("nothing", odd.join("broken link")).expect("a link");
    symlink("loop", odd.join("loop")).expect("a link");
    let not_utf8 = odd.join(OsStr::from_bytes(b"not \xff\xfe utf8"));
    fs::write(not_utf8, b"x").expect("a file");
    fs::create_dir_all(odd.join("empty directories/inner")).expect("a directory");
    mknodat(CWD, odd.join("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a named pipe");
    // The listener goes, its name stays.
    drop(UnixListener::bind(odd.join("socket")).expect("a socket"));
    files
}
