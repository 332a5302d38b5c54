//! A store in memory whose versions follow from the content alone, as S3's do: whoever restores an object restores its version, too.

#![allow(unreachable_pub, reason = "a module of tests")]

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::fmt;
use std::sync::Arc;

/// Clones are the same store.
#[derive(Debug, Clone, Default)]
pub struct ContentTags(Arc<InMemory>);

impl ContentTags {
    /// An object with the tag of its content.
    async fn tagged(&self, location: &Path) -> Result<(ObjectMeta, Bytes)> {
        let found = self.0.get(location).await?;
        let mut meta = found.meta.clone();
        let bytes = found.bytes().await?;
        meta.e_tag = Some(tag(&bytes));
        Ok((meta, bytes))
    }
}

fn tag(bytes: &[u8]) -> String {
    format!("\"{:08x}-{}\"", crc32c::crc32c(bytes), bytes.len())
}

impl fmt::Display for ContentTags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "content-tags({})", self.0)
    }
}

#[async_trait]
impl ObjectStore for ContentTags {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        if let PutMode::Update(expected) = &mut options.mode {
            let found = self.0.get(location).await?;
            let version = found.meta.e_tag.clone();
            if expected.e_tag != Some(tag(&found.bytes().await?)) {
                return Err(Error::Precondition {
                    path: location.to_string(),
                    source: "it is at another version".into(),
                });
            }
            expected.e_tag = version;
        }
        let written = tag(&Bytes::from(payload.clone()));
        let put = self.0.put_opts(location, payload, options).await?;
        Ok(PutResult {
            e_tag: Some(written),
            ..put
        })
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(Error::NotSupported {
            source: "no test uploads in parts".into(),
        })
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (meta, bytes) = self.tagged(location).await?;
        options.check_preconditions(&meta)?;
        let unconditional = GetOptions {
            if_match: None,
            if_none_match: None,
            ..options
        };
        let mut result = self.0.get_opts(location, unconditional).await?;
        let range = usize::try_from(result.range.start).unwrap()..usize::try_from(result.range.end).unwrap();
        let body = bytes.slice(range);
        result.meta = meta;
        result.payload = GetResultPayload::Stream(stream::once(async { Ok(body) }).boxed());
        Ok(result)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let store = self.clone();
        let listed = self.0.list(prefix).then(move |found| {
            let store = store.clone();
            async move { Ok(store.tagged(&found?.location).await?.0) }
        });
        listed.boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(Error::NotSupported {
            source: "no test lists folders".into(),
        })
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(Error::NotSupported {
            source: "no test copies".into(),
        })
    }
}
