//! Rereads files while the gateway runs. Their last usable content stays in force until they have new usable content.
//! Polling, not inotify: Kubernetes swaps a link two levels up, which inotify does not report.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use sha2::{Digest, Sha256};

/// Maximum file length: a bundle of CAs has 250 KB.
const LENGTH_MAX: u64 = 1 << 20;

/// Maximum number of readings until two agree: somebody may be replacing several files.
const READINGS: usize = 4;

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} {}: {reason}", path.display())]
pub struct FileError {
    setting: &'static str,
    path: PathBuf,
    reason: String,
}

/// A set of files that belong together, each with the setting that names it.
#[derive(Debug, Clone)]
pub(crate) struct Files(Vec<(&'static str, PathBuf)>);

impl Files {
    pub(crate) fn new(files: Vec<(&'static str, PathBuf)>) -> Files {
        Files(files)
    }

    pub(crate) fn fault(&self, place: usize, reason: impl Display) -> FileError {
        let (setting, path) = &self.0[place];
        FileError {
            setting,
            path: path.clone(),
            reason: reason.to_string(),
        }
    }

    pub(crate) fn path(&self, place: usize) -> impl Display {
        self.0[place].1.display()
    }

    /// Reads all files at one moment: two readings in a row must agree.
    fn read(&self) -> Result<Vec<Vec<u8>>, FileError> {
        let mut contents = self.read_each()?;
        let mut changing = 0;
        for _ in 1..READINGS {
            let again = self.read_each()?;
            match again.iter().zip(&contents).position(|(new, old)| new != old) {
                None => return Ok(again),
                Some(place) => changing = place,
            }
            contents = again;
        }
        Err(self.fault(changing, "it changes during the read"))
    }

    fn read_each(&self) -> Result<Vec<Vec<u8>>, FileError> {
        let read = |(place, (_, path)): (usize, &(&str, PathBuf))| {
            let mut content = Vec::new();
            File::open(path)
                .and_then(|file| file.take(LENGTH_MAX + 1).read_to_end(&mut content))
                .map_err(|error| self.fault(place, unreadable(&error)))?;
            if content.len() as u64 > LENGTH_MAX {
                return Err(self.fault(place, format_args!("longer than {LENGTH_MAX} bytes")));
            }
            Ok(content)
        };
        self.0.iter().enumerate().map(read).collect()
    }
}

fn unreadable(error: &io::Error) -> String {
    format!("cannot be read: {error}")
}

/// The result of a look at the files.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Their content is in force, as before.
    Same,
    /// They again have the content that is in force, after an unusable one.
    Back,
    /// Their new content is in force from now on.
    New,
    /// They still have the content that was refused before.
    StillRefused,
    /// They are unusable; the previous content stays in force.
    Refused(FileError),
}

/// The last usable content of a set of files.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    files: Files,
    parse: fn(&Files, &[Vec<u8>]) -> Result<T, FileError>,
    current: RwLock<Arc<T>>,
    seen: Mutex<Seen>,
}

/// Holds only the digest of the content: the files are secrets.
#[derive(Debug)]
struct Seen {
    in_force: [u8; 32],
    refused: Option<Result<[u8; 32], FileError>>,
}

impl<T> Watched<T> {
    pub(crate) fn load(
        files: Files,
        parse: fn(&Files, &[Vec<u8>]) -> Result<T, FileError>,
    ) -> Result<Watched<T>, FileError> {
        let contents = files.read()?;
        let current = parse(&files, &contents)?;
        Ok(Watched {
            files,
            parse,
            current: RwLock::new(Arc::new(current)),
            seen: Mutex::new(Seen {
                in_force: digest(&contents),
                refused: None,
            }),
        })
    }

    /// The content in force.
    pub(crate) fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Checks the files for new content. Blocks on the disk.
    pub(crate) fn look(&self) -> Look {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let contents = match self.files.read() {
            Ok(contents) => contents,
            Err(error) => return seen.refuse(Err(error.clone()), error),
        };
        let digest = digest(&contents);
        if digest == seen.in_force {
            return match seen.refused.take() {
                Some(_) => Look::Back,
                None => Look::Same,
            };
        }
        match (self.parse)(&self.files, &contents) {
            Ok(new) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
                *seen = Seen {
                    in_force: digest,
                    refused: None,
                };
                Look::New
            }
            Err(error) => seen.refuse(Ok(digest), error),
        }
    }
}

impl Seen {
    fn refuse(&mut self, what: Result<[u8; 32], FileError>, error: FileError) -> Look {
        if self.refused.as_ref() == Some(&what) {
            return Look::StillRefused;
        }
        self.refused = Some(what);
        Look::Refused(error)
    }
}

fn digest(contents: &[Vec<u8>]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for content in contents {
        digest.update((content.len() as u64).to_be_bytes());
        digest.update(content);
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    /// Parses two numbers, which must be equal.
    fn pair(files: &Files, contents: &[Vec<u8>]) -> Result<u32, FileError> {
        let number = |place: usize| {
            let text = String::from_utf8_lossy(&contents[place]);
            text.parse::<u32>().map_err(|error| files.fault(place, error))
        };
        match (number(0)?, number(1)?) {
            (one, other) if one == other => Ok(one),
            _ => Err(files.fault(1, "not the same")),
        }
    }

    fn write(directory: &Path, one: &str, other: &str) {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("one"), one).unwrap();
        fs::write(directory.join("other"), other).unwrap();
    }

    fn files(directory: &Path) -> Files {
        Files::new(vec![
            ("--one", directory.join("one")),
            ("--other", directory.join("other")),
        ])
    }

    fn reason(look: Look) -> String {
        match look {
            Look::Refused(error) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn unusable_files_leave_the_old_ones_in_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        write(path, "1", "1");
        let watched = Watched::load(files(path), pair).unwrap();
        assert_eq!((watched.look(), *watched.current()), (Look::Same, 1));

        write(path, "2", "1");
        let shown = reason(watched.look());
        assert_eq!(
            shown,
            format!("--other {}: not the same", path.join("other").display())
        );
        assert_eq!((watched.look(), *watched.current()), (Look::StillRefused, 1));
        write(path, "x", "1");
        assert!(reason(watched.look()).starts_with("--one "));
        fs::remove_file(path.join("one")).unwrap();
        assert!(reason(watched.look()).contains("cannot be read"));
        assert_eq!((watched.look(), *watched.current()), (Look::StillRefused, 1));
        write(path, "1", "1");
        assert_eq!((watched.look(), watched.look()), (Look::Back, Look::Same));

        write(path, "2", "2");
        assert_eq!((watched.look(), *watched.current()), (Look::New, 2));
        assert_eq!(watched.look(), Look::Same);
    }

    /// As Kubernetes mounts a Secret: `one -> ..data/one`, `..data -> ..2026_1`.
    #[test]
    fn a_link_further_up_may_be_what_changes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        write(&path.join("..2026_1"), "1", "1");
        write(&path.join("..2026_2"), "2", "2");
        symlink("..2026_1", path.join("..data")).unwrap();
        for name in ["one", "other"] {
            symlink(format!("..data/{name}"), path.join(name)).unwrap();
        }
        let watched = Watched::load(files(path), pair).unwrap();
        symlink("..2026_2", path.join("..data_tmp")).unwrap();
        fs::rename(path.join("..data_tmp"), path.join("..data")).unwrap();
        fs::remove_dir_all(path.join("..2026_1")).unwrap();
        assert_eq!((watched.look(), *watched.current()), (Look::New, 2));
    }

    #[test]
    fn a_file_that_is_never_the_same_twice_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "1", "1");
        let random = PathBuf::from("/proc/sys/kernel/random/uuid");
        let files = Files::new(vec![("--one", directory.path().join("one")), ("--other", random)]);
        let error = Watched::load(files, pair).unwrap_err().to_string();
        assert!(
            error.starts_with("--other ") && error.ends_with("it changes during the read"),
            "{error}"
        );
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        let files = Files::new(vec![
            ("--one", "/dev/zero".into()),
            ("--other", "/dev/null".into()),
        ]);
        let error = Watched::load(files, pair).unwrap_err().to_string();
        assert_eq!(error, "--one /dev/zero: longer than 1048576 bytes");
    }
}
