//! The file of acknowledged ids, for tests that compare it with the arrived records. It never contains an
//! unacknowledged range.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::LoadError;

/// Appends a line per acknowledged request.
#[derive(Debug)]
pub(crate) struct AcknowledgedFile {
    path: PathBuf,
    run: String,
    file: Mutex<File>,
}

impl AcknowledgedFile {
    pub(crate) fn create(path: PathBuf, run: String) -> Result<AcknowledgedFile, LoadError> {
        match File::create(&path) {
            Ok(file) => Ok(AcknowledgedFile {
                path,
                run,
                file: Mutex::new(file),
            }),
            Err(error) => Err(LoadError::AcknowledgedFile { path, error }),
        }
    }

    /// Writes each line straight to the file: a killed run leaves everything it knew.
    pub(crate) fn add(&self, first: u64, count: u64) -> Result<(), LoadError> {
        let line = format!("{} {first} {count}\n", self.run);
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes())
            .map_err(|error| LoadError::AcknowledgedFile {
                path: self.path.clone(),
                error,
            })
    }
}
