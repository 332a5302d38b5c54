//! Log lines for the bodies: real ones from a folder, or generated ones. It never sends anything.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::LoadError;
use crate::random::mix;

/// The environment variable with the folder of real log lines (for example those of logpai/loghub), for loads without
/// an explicit one. It is relative to the working directory.
const FOLDER_VARIABLE: &str = "MILLPOND_LOGHUB";

/// Maximum total bytes to read: memory holds a template of every line.
const CORPUS_BYTES_MAX: u64 = 64 << 20;

/// Number of generated lines: enough that compression finds no short cycle.
const GENERATED_LINES: u64 = 20_000;

/// A line and its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) file: String,
    pub(crate) line: String,
}

/// The bodies, and a description of their source.
#[derive(Debug, Clone)]
pub(crate) struct Bodies {
    pub(crate) bodies: Vec<Body>,
    pub(crate) origin: String,
}

impl Bodies {
    /// Loads the lines of the `*.log` files in `folder` or in the variable's folder, or generates text without either.
    pub(crate) fn load(folder: Option<&Path>) -> Result<Bodies, LoadError> {
        let named = std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty());
        match folder.or(named.as_deref().map(Path::new)) {
            Some(folder) => read(folder),
            None => Ok(generated()),
        }
    }
}

fn read(folder: &Path) -> Result<Bodies, LoadError> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |error| LoadError::Bodies { path, error }
    };
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable(folder))? {
        let path = entry.map_err(unreadable(folder))?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            files.push(path);
        }
    }
    files.sort();
    let mut left = CORPUS_BYTES_MAX;
    let mut bodies = Vec::new();
    for path in &files {
        let length = fs::metadata(path).map_err(unreadable(path))?.len();
        if length > left {
            let error = io::Error::other(format!(
                "more than {CORPUS_BYTES_MAX} bytes of *.log files; use fewer"
            ));
            return Err(LoadError::Bodies {
                path: path.clone(),
                error,
            });
        }
        left -= length;
        let text = fs::read(path).map_err(unreadable(path))?;
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        bodies.extend(
            String::from_utf8_lossy(&text)
                .lines()
                .filter(|line| !line.is_empty())
                .map(|line| Body {
                    file: file.clone().into_owned(),
                    line: line.to_owned(),
                }),
        );
    }
    if bodies.is_empty() {
        let error = io::Error::other("no *.log file with lines");
        return Err(LoadError::Bodies {
            path: folder.to_owned(),
            error,
        });
    }
    let origin = format!(
        "{} lines of {} files in {}",
        bodies.len(),
        files.len(),
        folder.display()
    );
    Ok(Bodies { bodies, origin })
}

fn generated() -> Bodies {
    const LEVELS: [&str; 8] = ["INFO", "INFO", "INFO", "INFO", "DEBUG", "DEBUG", "WARN", "ERROR"];
    const PARTS: [&str; 6] = [
        "scheduler",
        "storage.block",
        "net.session",
        "auth",
        "cache",
        "replicator",
    ];
    const VERBS: [&str; 6] = [
        "accepted",
        "released",
        "timed out waiting for",
        "verified",
        "retried",
        "evicted",
    ];
    const NOUNS: [&str; 6] = ["block", "lease", "connection", "token", "segment", "request"];
    let pick = |words: &[&'static str], random: u64| {
        words[usize::try_from(random % words.len() as u64).unwrap_or(0)]
    };
    let bodies = (0..GENERATED_LINES)
        .map(|n| {
            let random = mix(n);
            Body {
                file: "generated.log".to_owned(),
                line: format!(
                    "{} [{}-{}] {} {} {:016x} from 10.{}.{}.{}:{} in {} ms",
                    pick(&LEVELS, random),
                    pick(&PARTS, random >> 8),
                    random >> 60,
                    pick(&VERBS, random >> 16),
                    pick(&NOUNS, random >> 24),
                    mix(random),
                    random >> 32 & 7,
                    random >> 36 & 63,
                    random >> 42 & 255,
                    1024 + (random >> 20 & 0x7fff),
                    random >> 50 & 1023,
                ),
            }
        })
        .collect();
    Bodies {
        bodies,
        origin: format!("{GENERATED_LINES} generated lines"),
    }
}
