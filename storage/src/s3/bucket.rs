//! Creates a bucket, which `object_store` does not do.

use super::{Chain, DEFAULT_REGION, told};
use crate::error::{ErrorKind, readable_refusal, refusal_kind};
use crate::open::OpenError;
use crate::url::BufferUrl;
use object_store::ClientOptions;
use object_store::aws::AwsAuthorizer;
use object_store::client::{HttpConnector, HttpRequest, ReqwestConnector};
use std::error::Error;
use std::sync::Arc;

/// A bucket that may have to be created.
pub(crate) struct Bucket {
    pub(super) credentials: Arc<Chain>,
    pub(super) client: ClientOptions,
    pub(super) endpoint: String,
    pub(super) region: String,
    pub(super) name: String,
}

/// The server answered with this.
struct Refusal {
    /// Status, reason and body.
    text: String,
}

impl Bucket {
    /// Creates the bucket. Succeeds if this account already owns it.
    pub(crate) async fn create(&self, url: &BufferUrl) -> Result<(), OpenError> {
        let not_made = |why, kind| OpenError::NotMade {
            url: url.to_string(),
            what: format!("bucket {:?}", self.name),
            why,
            kind,
        };
        match self.put().await {
            Ok(Ok(())) => Ok(()),
            // Amazon's error code for a bucket of this account. Its first region answers 200 instead.
            Ok(Err(Refusal { text })) if text.contains("<Code>BucketAlreadyOwnedByYou</Code>") => Ok(()),
            Ok(Err(Refusal { text })) => Err(not_made(readable_refusal(&text), refusal_kind(&text))),
            Err(error) => Err(not_made(told(&*error), ErrorKind::Transient)),
        }
    }

    /// [CreateBucket](https://docs.aws.amazon.com/AmazonS3/latest/API/API_CreateBucket.html), with the bucket in the path.
    async fn put(&self) -> Result<Result<(), Refusal>, Box<dyn Error + Send + Sync>> {
        let body = match self.region.as_str() {
            // This region is named by the absence of a constraint.
            DEFAULT_REGION => String::new(),
            region => format!(
                "<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                 <LocationConstraint>{region}</LocationConstraint></CreateBucketConfiguration>"
            ),
        };
        let mut request = HttpRequest::new(body.into());
        *request.method_mut() = "PUT".parse()?;
        *request.uri_mut() = format!("{}/{}", self.endpoint.trim_end_matches('/'), self.name).parse()?;
        let credential = self.credentials.get().await?;
        AwsAuthorizer::new(&credential, "s3", &self.region).try_authorize(&mut request, None)?;
        let answer = ReqwestConnector::default()
            .connect(&self.client)?
            .execute(request)
            .await?;
        let status = answer.status();
        let body = answer.into_body().bytes().await?;
        if status.is_success() {
            return Ok(Ok(()));
        }
        let text = format!("{status}: {}", String::from_utf8_lossy(&body));
        Ok(Err(Refusal { text }))
    }
}
