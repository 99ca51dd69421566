//! Files to send, and whether those that arrived are the same.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

const PIECE: usize = 1 << 20;

/// Every file of `source` is in `target` with the same bytes, and nothing else is.
pub(crate) fn compare(source: &Path, target: &Path) -> Result<(), String> {
    let (wanted, found) = (names(source)?, names(target)?);
    if let Some(missing) = wanted.iter().find(|name| found.binary_search(name).is_err()) {
        return Err(format!(
            "{missing} did not arrive ({} of {} files are there)",
            found.len(),
            wanted.len()
        ));
    }
    if let Some(more) = found.iter().find(|name| wanted.binary_search(name).is_err()) {
        return Err(format!("{more} was not sent"));
    }
    for name in &wanted {
        same(&source.join(name), &target.join(name)).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}

/// Names of all files below the folder, with their directories, sorted.
pub(crate) fn names(folder: &Path) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(inside) = folders.pop() {
        let path = folder.join(&inside);
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = format!("{inside}{}", entry.file_name().to_string_lossy());
            if entry.file_type().map_err(failed)?.is_dir() {
                folders.push(name + "/")
            } else {
                names.push(name)
            }
        }
    }
    names.sort();
    Ok(names)
}

fn same(one: &Path, other: &Path) -> Result<(), String> {
    let open = |path: &Path| File::open(path).map_err(|error| error.to_string());
    let (mut one, mut other) = (open(one)?, open(other)?);
    let (mut left, mut right) = (vec![0u8; PIECE], vec![0u8; PIECE]);
    let mut at = 0;
    loop {
        let (first, second) = (fill(&mut one, &mut left)?, fill(&mut other, &mut right)?);
        if first != second {
            return Err(format!("differs in length after {} bytes", at + first.min(second)));
        }
        if left[..first] != right[..second] {
            return Err(format!("differs between bytes {at} and {}", at + first));
        }
        if first == 0 {
            return Ok(());
        }
        at += first;
    }
}

fn fill(file: &mut File, piece: &mut [u8]) -> Result<usize, String> {
    let mut length = 0;
    while length < piece.len() {
        match file.read(&mut piece[length..]).map_err(|error| error.to_string())? {
            0 => break,
            more => length += more,
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let (source, target) = (folder.path().join("a"), folder.path().join("b"));
        fs::create_dir(&target).unwrap();
        crate::measure::make_files(&source, 2, 2_000_003);
        let told = |what: &str| {
            let why = compare(&source, &target).unwrap_err();
            assert!(why.contains(what), "{why}");
        };
        told("f00000 did not arrive");
        for name in names(&source).unwrap() {
            fs::copy(source.join(&name), target.join(&name)).unwrap();
        }
        compare(&source, &target).unwrap();
        fs::write(target.join("more"), "").unwrap();
        told("more was not sent");
        fs::remove_file(target.join("more")).unwrap();
        fs::create_dir(target.join("below")).unwrap();
        fs::write(target.join("below/it"), "").unwrap();
        told("below/it was not sent");
        fs::remove_dir_all(target.join("below")).unwrap();
        let mut bytes = fs::read(target.join("f00001")).unwrap();
        bytes[1_500_000] ^= 1;
        fs::write(target.join("f00001"), &bytes).unwrap();
        told("f00001: differs between bytes 1048576");
        bytes.pop();
        fs::write(target.join("f00000"), &bytes).unwrap();
        told("f00000: differs");
    }
}
