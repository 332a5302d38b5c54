//! A buffer in a directory, with the same contract as one in a bucket: atomic, durable, compare-and-set.
//!
//! `object_store`'s file store has no conditional update. This one uses a lock file, a synced staged file and a rename.
//! A version is the file's inode, size and modification time. Every update advances the modification time, whatever the
//! clock or the file system does, so no version recurs. It does not protect a compare-and-set object that somebody
//! deletes by hand and creates again.

use crate::error::Failure;
use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use millpond_runtime::{SystemEnvironment, blocking};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Location;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UpdateVersion,
};
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{Mutex, OwnedMutexGuard};

const STORE: &str = "file";

/// `LocalFileSystem` neither lists nor accepts names that end in `#` and digits: they are its staged files. It counts
/// its own from 1.
const LOCK: &str = ".millpond-lock#0";
const STAGED_SUFFIX: &str = "#0";

/// Only the user that runs Millpond can read a buffer.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

#[derive(Debug, Clone)]
pub(crate) struct FileStore {
    files: LocalFileSystem,
    lock_path: PathBuf,
    /// Serializes this process's use of the lock file, so that at most one thread blocks on it.
    turn: Arc<Mutex<()>>,
}

/// Releases the lock file, then the turn.
struct Locked {
    _file: File,
    _turn: OwnedMutexGuard<()>,
}

impl FileStore {
    /// Opens a directory. Returns `None` if it does not exist and `create` is off.
    pub(crate) fn open(root: &Path, create: bool) -> std::result::Result<Option<Self>, Failure> {
        match fs::metadata(root) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(Failure::Invalid("it is not a directory".to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !create => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                private_directory(root).map_err(|error| match error.kind() {
                    // The system refuses new directories there, as in /proc.
                    io::ErrorKind::NotFound => {
                        Failure::Invalid(format!("no directory can be created there: {error}"))
                    }
                    _ => failed("create the directory", &error).into(),
                })?;
            }
            Err(error) => return Err(failed("look for the directory", &error).into()),
        }
        let files = LocalFileSystem::new_with_prefix(root)?.with_fsync(true);
        Ok(Some(Self {
            files,
            lock_path: root.join(LOCK),
            turn: Arc::default(),
        }))
    }

    async fn lock(&self) -> Result<Locked> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let path = self.lock_path.clone();
        run(move || {
            let file = private_file()
                .truncate(false)
                .open(&path)
                .and_then(|file| file.lock().map(|()| file))
                .map_err(|error| failed("lock", &error))?;
            Ok(Locked {
                _file: file,
                _turn: turn,
            })
        })
        .await
    }

    async fn update(
        &self,
        location: &Location,
        payload: PutPayload,
        expected: UpdateVersion,
    ) -> Result<PutResult> {
        let locked = self.lock().await?;
        let current = match self.files.head(location).await {
            Ok(current) => current,
            Err(error @ Error::NotFound { .. }) => return Err(refused(location, error.into())),
            Err(error) => return Err(error),
        };
        if current.e_tag != expected.e_tag {
            return Err(refused(location, "it is at another version".into()));
        }
        let path = self.files.path_to_filesystem(location)?;
        let not_before = SystemTime::from(current.last_modified);
        // From here on the write continues even if the caller leaves, and keeps the lock until it is done.
        let locked = run(move || {
            replace(&path, &payload, not_before).map_err(|error| failed("replace", &error))?;
            Ok(locked)
        })
        .await?;
        let written = self.files.head(location).await?;
        drop(locked);
        Ok(PutResult {
            e_tag: written.e_tag,
            version: None,
            extensions: Default::default(),
        })
    }

    /// `LocalFileSystem` creates directories and files with the umask. The buffer's directory, created earlier, keeps
    /// others out.
    async fn create(
        &self,
        location: &Location,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let path = self.files.path_to_filesystem(location)?;
        let place = path.clone();
        run(move || {
            let made = place.parent().map_or(Ok(()), private_directory);
            made.map_err(|error| failed("create the directory", &error))
        })
        .await?;
        let put = self.files.put_opts(location, payload, options).await?;
        run(move || {
            match fs::set_permissions(&path, Permissions::from_mode(FILE_MODE)) {
                // Somebody deleted it meanwhile.
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(failed("set the permissions", &error))
                }
                _ => Ok(()),
            }
        })
        .await?;
        Ok(put)
    }

    async fn remove(&self, location: &Location) -> Result<()> {
        let _locked = self.lock().await?;
        self.files.delete(location).await
    }
}

async fn run<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    blocking::run(&SystemEnvironment, work).await?
}

/// Creates the directory and its missing parents, durably and for this user only.
fn private_directory(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|above| !above.exists()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(path)?;
    let mut above = missing.iter().filter_map(|made| made.parent());
    above.try_for_each(sync_directory)
}

/// Creates a missing file for this user only.
fn private_file() -> OpenOptions {
    let mut options = File::options();
    options.create(true).write(true).mode(FILE_MODE);
    options
}

/// Replaces a file that was last modified at `not_before`, durably.
fn replace(path: &Path, payload: &PutPayload, not_before: SystemTime) -> io::Result<()> {
    let mut staged = path.as_os_str().to_owned();
    staged.push(STAGED_SUFFIX);
    let staged = PathBuf::from(staged);
    // Overwrite a staged file that a crash left behind: under the lock, no other process uses it.
    let mut file = private_file().truncate(true).open(&staged)?;
    for piece in payload {
        file.write_all(piece)?;
    }
    modify_after(&file, not_before)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&staged, path)?;
    path.parent().map_or(Ok(()), sync_directory)
}

/// Sets a modification time later than `before`, at the resolution of file systems.
fn modify_after(file: &File, before: SystemTime) -> io::Result<()> {
    // `LocalFileSystem` uses microseconds in its ETags and reads no finer resolution.
    const STEPS: [Duration; 3] = [
        Duration::from_micros(2),
        Duration::from_millis(10),
        Duration::from_secs(2),
    ];
    let later = |file: &File| -> io::Result<bool> {
        Ok(file.metadata()?.modified()? >= before + Duration::from_micros(1))
    };
    for step in STEPS {
        if later(file)? {
            return Ok(());
        }
        file.set_modified(before + step)?;
    }
    if later(file)? {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "the file system does not keep modification times, but versions depend on them",
    ))
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn failed(what: &str, error: &io::Error) -> Error {
    Error::Generic {
        store: STORE,
        source: Box::new(io::Error::new(error.kind(), format!("cannot {what}: {error}"))),
    }
}

fn refused(location: &Location, why: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::Precondition {
        path: location.to_string(),
        source: why,
    }
}

fn unused(operation: &str) -> Error {
    Error::NotImplemented {
        operation: operation.to_owned(),
        implementer: STORE.to_owned(),
    }
}

impl fmt::Display for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for FileStore {
    async fn put_opts(
        &self,
        location: &Location,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        match options.mode.clone() {
            // A hard link is atomic: no lock is needed.
            PutMode::Create => self.create(location, payload, options).await,
            PutMode::Update(expected) => self.update(location, payload, expected).await,
            // It would break the guarantee of versions, and a buffer never needs it.
            PutMode::Overwrite => Err(unused("an unconditional put")),
        }
    }

    async fn put_multipart_opts(
        &self,
        _location: &Location,
        _options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(unused("a multipart upload"))
    }

    async fn get_opts(&self, location: &Location, options: GetOptions) -> Result<GetResult> {
        self.files.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Location>>,
    ) -> BoxStream<'static, Result<Location>> {
        let store = self.clone();
        locations
            .then(move |location| {
                let store = store.clone();
                async move {
                    let location = location?;
                    store.remove(&location).await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    /// Without ETags. Two contents may have the same one: a deletion frees its inode for the next file, and whoever restores a file may set
    /// its modification time.
    fn list(&self, prefix: Option<&Location>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = self.files.list(prefix);
        listed.map_ok(|meta| ObjectMeta { e_tag: None, ..meta }).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Location>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Location, _: &Location, _: CopyOptions) -> Result<()> {
        Err(unused("a copy"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cas, Store};
    use bytes::Bytes;
    use millpond_runtime::Environment as _;

    fn store(directory: &Path) -> Store {
        let files = FileStore::open(directory, false)
            .expect("open")
            .expect("the directory is there");
        Store::over(Arc::new(files), "")
    }

    #[tokio::test]
    async fn no_version_comes_back_even_if_the_clock_stands_still() {
        let directory = tempfile::tempdir().expect("directory");
        let store = store(directory.path());
        let path = directory.path().join("k");
        let Cas::Committed(mut version) = store.compare_and_set("k", None, "a".into()).await else {
            panic!("the first write is committed");
        };
        let mut seen = vec![version.clone()];
        for _ in 0..50 {
            // The clock jumps back: existing files appear to come from the future.
            let ahead = SystemEnvironment.system_time() + Duration::from_secs(3600);
            let file = File::options().write(true).open(&path).expect("file");
            if seen.len() == 1 {
                file.set_modified(ahead).expect("set time");
                version = store.get("k").await.expect("get").expect("there").version;
            }
            let Cas::Committed(next) = store.compare_and_set("k", Some(&version), "a".into()).await else {
                panic!("a write at the right version is committed");
            };
            assert!(!seen.contains(&next), "{next:?} came back");
            seen.push(next.clone());
            version = next;
        }
    }

    /// Every file and directory below, with its mode.
    fn modes(directory: &Path) -> Vec<(PathBuf, bool, u32)> {
        let mut found = Vec::new();
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let metadata = fs::metadata(&path).expect("metadata");
            if metadata.is_dir() {
                found.extend(modes(&path));
            }
            found.push((path, metadata.is_dir(), metadata.permissions().mode() & 0o777));
        }
        found
    }

    #[tokio::test]
    async fn only_the_owner_can_read_the_files_of_a_buffer() {
        let directory = tempfile::tempdir().expect("directory");
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("open to all");
        let files = FileStore::open(&directory.path().join("above/buffer"), true);
        let store = Store::over(Arc::new(files.expect("open").expect("made")), "");
        store
            .put_if_absent("a/b/segment", vec!["rows".into()])
            .await
            .expect("put");
        let Cas::Committed(version) = store.compare_and_set("manifest", None, "1".into()).await else {
            panic!("the first write is committed");
        };
        let Cas::Committed(_) = store
            .compare_and_set("manifest", Some(&version), "2".into())
            .await
        else {
            panic!("a write at the right version is committed");
        };
        let modes = modes(directory.path());
        assert!(modes.len() >= 7, "{modes:?}");
        for (path, is_directory, mode) in modes {
            let expected = if is_directory { 0o700 } else { 0o600 };
            assert_eq!(mode, expected, "{}: {mode:o}", path.display());
        }
    }

    #[tokio::test]
    async fn staged_and_lock_files_are_not_listed_and_cannot_be_had() {
        let directory = tempfile::tempdir().expect("directory");
        let store = store(directory.path());
        let Cas::Committed(version) = store.compare_and_set("a/k", None, "1".into()).await else {
            panic!("committed");
        };
        let second = store.compare_and_set("a/k", Some(&version), "2".into()).await;
        assert!(matches!(second, Cas::Committed(_)));
        // Left behind by a crash between write and rename.
        fs::write(directory.path().join("a/k#0"), "half").expect("write");
        fs::write(directory.path().join("a/s#1"), "half").expect("write");
        let keys: Vec<_> = store
            .list("")
            .await
            .expect("list")
            .into_iter()
            .map(|l| l.key)
            .collect();
        assert_eq!(keys, ["a/k"]);
        assert!(store.get("a/k#0").await.is_err());
        let third = store.get("a/k").await.expect("get").expect("there");
        let cas = store
            .compare_and_set("a/k", Some(&third.version), Bytes::from_static(b"3"))
            .await;
        assert!(matches!(cas, Cas::Committed(_)), "{cas:?}");
    }
}
