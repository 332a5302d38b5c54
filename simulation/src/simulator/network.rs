//! The path from a process to the store: requests, answers, network faults, and what landed. A sent request continues
//! whatever happens to its sender.

use super::process::Process;
use super::record::{Event, Record};
use super::witness::Witness;
use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::fmt;
use std::sync::Arc;
use tokio::task::JoinHandle;

fn unused(operation: &str) -> Error {
    Error::NotImplemented {
        operation: operation.to_owned(),
        implementer: "simulation".to_owned(),
    }
}

fn mode(mode: &PutMode) -> &'static str {
    match mode {
        PutMode::Overwrite => "put",
        PutMode::Create => "create",
        PutMode::Update(_) => "update",
    }
}

/// The result of a request in one word.
fn told<T>(answer: &Result<T>) -> &'static str {
    match answer {
        Ok(_) => "ok",
        Err(Error::NotFound { .. }) => "absent",
        Err(Error::AlreadyExists { .. }) => "exists",
        Err(Error::Precondition { .. }) => "mismatch",
        Err(Error::NotModified { .. }) => "unchanged",
        Err(_) => "failed",
    }
}

/// A process's requests and their answers.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) inner: Arc<dyn ObjectStore>,
    pub(crate) process: Arc<Process>,
    pub(crate) record: Arc<Record>,
}

impl Asked {
    /// Assigns a number to a request.
    fn asks(&self, what: fmt::Arguments<'_>) -> u64 {
        let number = self.record.request();
        self.record
            .event(&self.process.name, format_args!("#{number} {what}"));
        number
    }

    async fn is_told<T>(&self, number: u64, answer: Result<T>) -> Result<T> {
        self.process.turn().await;
        let told = told(&answer);
        self.record
            .event(&self.process.name, format_args!("#{number} is told: {told}"));
        answer
    }
}

async fn sent<T>(task: JoinHandle<T>) -> T {
    task.await
        .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

#[async_trait]
impl ObjectStore for Asked {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let checksum = payload
            .iter()
            .fold(0, |sum, piece| crc32c::crc32c_append(sum, piece));
        let (mode, bytes) = (mode(&options.mode), payload.content_length());
        self.process.turn().await;
        let number = self.asks(format_args!("{mode} {location}, {bytes} bytes {checksum:08x}"));
        let (inner, to) = (Arc::clone(&self.inner), location.clone());
        let answer = sent(tokio::spawn(async move {
            inner.put_opts(&to, payload, options).await
        }))
        .await;
        if mode == "update" && matches!(answer, Err(Error::Precondition { .. })) {
            self.record.count(Event::SwapsLost);
        }
        self.is_told(number, answer).await
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(unused("a multipart upload"))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.process.turn().await;
        let number = self.asks(format_args!("get {location}"));
        let answer = self.inner.get_opts(location, options).await;
        self.is_told(number, answer).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let asked = Asked {
            inner: Arc::clone(&self.inner),
            process: Arc::clone(&self.process),
            record: Arc::clone(&self.record),
        };
        let asked = Arc::new(asked);
        locations
            .then(move |location| {
                let asked = Arc::clone(&asked);
                async move {
                    let location = location?;
                    asked.process.turn().await;
                    let number = asked.asks(format_args!("delete {location}"));
                    let (inner, to) = (Arc::clone(&asked.inner), location.clone());
                    let answer = sent(tokio::spawn(async move { inner.delete(&to).await })).await;
                    asked.is_told(number, answer).await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = prefix.cloned();
        let (process, record, inner) = (
            Arc::clone(&self.process),
            Arc::clone(&self.record),
            Arc::clone(&self.inner),
        );
        let listing = async move {
            process.turn().await;
            let found: Vec<_> = inner.list(prefix.as_ref()).collect().await;
            process.turn().await;
            let (of, broken) = (prefix.unwrap_or_default(), found.iter().any(Result::is_err));
            let told = if broken { "failed" } else { "ok" };
            record.event(
                &process.name,
                format_args!("list {of} is told: {told}, {}", found.len()),
            );
            stream::iter(found)
        };
        stream::once(listing).flatten().boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(unused("a listing of folders"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(unused("a copy"))
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "simulation({})", self.process.name)
    }
}

/// The store's side: the order in which writes take effect.
#[derive(Debug)]
pub(crate) struct Landing {
    pub(crate) inner: Arc<dyn ObjectStore>,
    pub(crate) process: Arc<Process>,
    pub(crate) witness: Arc<Witness>,
}

#[async_trait]
impl ObjectStore for Landing {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let bytes = payload.clone().into();
        let result = self.inner.put_opts(location, payload, options).await;
        if result.is_ok() {
            self.witness.wrote(&self.process.name, location.as_ref(), &bytes);
        }
        result
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(unused("a multipart upload"))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (inner, process, witness) = (
            Arc::clone(&self.inner),
            Arc::clone(&self.process),
            Arc::clone(&self.witness),
        );
        locations
            .then(move |location| {
                let (inner, process, witness) =
                    (Arc::clone(&inner), Arc::clone(&process), Arc::clone(&witness));
                async move {
                    let location = location?;
                    inner.delete(&location).await?;
                    witness.deleted(&process.name, location.as_ref());
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(unused("a listing of folders"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(unused("a copy"))
    }
}

impl fmt::Display for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "simulation({})", self.inner)
    }
}
