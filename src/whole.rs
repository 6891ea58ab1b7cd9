//! Files that are written whole or not at all.

use std::ffi::OsString;
use std::fs;
use std::io::{Result, Write};
use std::path::Path;

/// Writes the file so that a reader finds the old one or the new one. A link stays a link, and nothing takes the place
/// of a device or a pipe: those are written to.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if path.metadata().is_ok_and(|there| !there.is_file()) {
        return fs::write(path, bytes);
    }
    let mut beside = OsString::from(path);
    beside.push(".new");
    let written = fs::File::create(&beside).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, symlink};

    use super::*;

    #[test]
    fn only_a_file_is_replaced() {
        let dir = std::env::temp_dir().join(format!("kvroute-whole-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (file, link, socket) = (dir.join("file"), dir.join("link"), dir.join("socket"));
        write(&file, b"old").unwrap();
        symlink(&file, &link).unwrap();
        write(&link, b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert!(link.symlink_metadata().unwrap().is_symlink());
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(write(&socket, b"x").is_err() && write(&dir, b"x").is_err());
        assert!(write(&dir.join("none").join("file"), b"x").is_err());
        assert!(socket.metadata().unwrap().file_type().is_socket());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 3);
        fs::remove_dir_all(&dir).unwrap();
    }
}
