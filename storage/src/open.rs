//! Opens a [`Store`] at a buffer's URL: client, credentials, and a check that the bucket or directory exists.

use crate::error::{Error, ErrorKind};
use crate::file::FileStore;
use crate::s3;
use crate::store::{REQUEST_TIMEOUT, Store};
use crate::unreliable::{Faults, S3Latency, Unreliable};
use crate::url::{BufferUrl, Place, Service};
use millpond_runtime::{SystemEnvironment, blocking};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::memory::InMemory;
use object_store::{ClientOptions, GetOptions, ObjectStore, RetryConfig};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How to open a buffer.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The address of an S3 service other than AWS (`http://127.0.0.1:9000`). Default: `AWS_ENDPOINT_URL_S3`,
    /// `AWS_ENDPOINT_URL` or the profile. With an endpoint, the bucket goes into the path.
    pub endpoint: Option<String>,
    /// The S3 region. Default: from the environment, the profile or the instance.
    pub region: Option<String>,
    /// Explicit S3 credentials. Default: from the AWS SDK's chain.
    pub credentials: Option<S3Credentials>,
    /// Allow an endpoint without TLS on another machine. A local one is always allowed.
    pub allow_http: bool,
    /// Time limit of one request, including its body.
    pub request_timeout: Duration,
    /// Create a missing bucket (S3) or directory.
    pub create: bool,
    /// For benchmarks: delay every request as S3 would, with this seed.
    pub simulate_s3_latency: Option<u64>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            credentials: None,
            allow_http: false,
            request_timeout: REQUEST_TIMEOUT,
            create: false,
            simulate_s3_latency: None,
        }
    }
}

/// S3 credentials that do not change.
#[derive(Clone, PartialEq, Eq)]
pub struct S3Credentials {
    /// The access key's ID.
    pub access_key_id: String,
    /// The access key's secret.
    pub secret_access_key: String,
    /// The session token of temporary credentials.
    pub session_token: Option<String>,
}

impl fmt::Debug for S3Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Credentials")
            .field("access_key_id", &self.access_key_id)
            .finish_non_exhaustive()
    }
}

/// Why a buffer could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The bucket or directory does not exist.
    #[error("there is no {what} for {url}; {how}")]
    Missing {
        /// The buffer's URL.
        url: String,
        /// What is missing, with its name.
        what: String,
        /// How to create it.
        how: String,
    },
    /// A setting is missing or invalid.
    #[error("cannot open {url}: {why}")]
    Settings {
        /// The buffer's URL.
        url: String,
        /// The problem, and what to do about it.
        why: String,
    },
    /// The bucket or directory could not be created.
    #[error("cannot create the {what} for {url}: {why}")]
    NotMade {
        /// The buffer's URL.
        url: String,
        /// What to create, with its name.
        what: String,
        /// The message of the service or the system.
        why: String,
        /// What the caller can do about it.
        kind: ErrorKind,
    },
    /// The first request to the store failed.
    #[error(transparent)]
    Request(#[from] Error),
}

impl OpenError {
    /// What the caller can do about it. A transient failure is worth a retry.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. } | Self::Settings { .. } => ErrorKind::Misconfigured,
            Self::NotMade { kind, .. } => *kind,
            Self::Request(error) => error.kind(),
        }
    }
}

/// The key that [`Store::open`] reads: every buffer that was ever written to has it.
const PROBE: &str = "buffer";

impl Store {
    /// Opens the buffer at a URL. It makes one request, so that a missing bucket, refused credentials or a wrong region
    /// fail early.
    ///
    /// # Errors
    /// Settings are missing or wrong, the bucket or directory does not exist (and [`StoreOptions::create`] is off), or
    /// the request failed.
    pub async fn open(url: &BufferUrl, options: &StoreOptions) -> Result<Self, OpenError> {
        let (objects, prefix, bucket) = match &url.0 {
            Place::Memory => (memory(), "", None),
            Place::Directory(path) => (directory(url, path, options).await?, "", None),
            Place::Bucket {
                service: Service::S3,
                bucket,
                prefix,
            } => {
                let (objects, found) = s3::open(url, bucket, options).await?;
                (objects, prefix.as_str(), Some(found))
            }
            Place::Bucket {
                service: Service::Gcs,
                bucket,
                prefix,
            } => (gcs(url, bucket, options)?, prefix.as_str(), None),
            Place::Bucket {
                service: Service::Azure,
                bucket,
                prefix,
            } => (azure(url, bucket, options)?, prefix.as_str(), None),
        };
        let objects = match options.simulate_s3_latency {
            None => objects,
            Some(seed) => Arc::new(Unreliable::new(
                objects,
                Faults {
                    seed,
                    latency: Some(S3Latency::default()),
                    ..Faults::default()
                },
            )),
        };
        let store = Self::new(objects, prefix, url.to_string(), options.request_timeout);
        match store.fetch(PROBE, GetOptions::default(), 0).await {
            Ok(_) => Ok(store),
            Err(failure) if failure.is_missing_bucket() => {
                match bucket {
                    Some(bucket) if options.create => bucket.create(url).await?,
                    _ => return Err(missing_bucket(url)),
                }
                Ok(store)
            }
            Err(failure) => Err(store.error("get", PROBE, &failure).into()),
        }
    }
}

fn memory() -> Arc<dyn ObjectStore> {
    Arc::new(InMemory::new())
}

fn missing_bucket(url: &BufferUrl) -> OpenError {
    let Place::Bucket { service, bucket, .. } = &url.0 else {
        unreachable!("only a bucket's store reports a missing bucket");
    };
    let (what, how) = match service {
        Service::S3 => (
            "bucket",
            format!("create it with `aws s3 mb s3://{bucket}`, or start a gateway with --create-bucket"),
        ),
        Service::Gcs => (
            "bucket",
            format!("create it with `gcloud storage buckets create gs://{bucket}`"),
        ),
        Service::Azure => (
            "container",
            format!("create it with `az storage container create --name {bucket}`"),
        ),
    };
    OpenError::Missing {
        url: url.to_string(),
        what: format!("{what} {bucket:?}"),
        how,
    }
}

async fn directory(
    url: &BufferUrl,
    path: &Path,
    options: &StoreOptions,
) -> Result<Arc<dyn ObjectStore>, OpenError> {
    let create = options.create;
    let owned = path.to_owned();
    let opened = blocking::run(&SystemEnvironment, move || FileStore::open(&owned, create)).await;
    let what = || format!("directory {}", path.display());
    match opened {
        Ok(Ok(Some(files))) => Ok(Arc::new(files)),
        Ok(Ok(None)) => Err(OpenError::Missing {
            url: url.to_string(),
            what: what(),
            how: "create it, or start a gateway with --create-bucket".to_owned(),
        }),
        Ok(Err(failure)) => Err(OpenError::NotMade {
            url: url.to_string(),
            what: what(),
            why: failure.cause(),
            kind: failure.kind(),
        }),
        Err(join) => Err(OpenError::NotMade {
            url: url.to_string(),
            what: what(),
            why: join.to_string(),
            kind: ErrorKind::Transient,
        }),
    }
}

fn gcs(url: &BufferUrl, bucket: &str, options: &StoreOptions) -> Result<Arc<dyn ObjectStore>, OpenError> {
    let client = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(bucket)
        .with_retry(no_retries(options))
        .with_client_options(client_options(options))
        .build()
        .map_err(|error| {
            settings(
                url,
                &error,
                "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
            )
        })?;
    Ok(Arc::new(client))
}

fn azure(
    url: &BufferUrl,
    container: &str,
    options: &StoreOptions,
) -> Result<Arc<dyn ObjectStore>, OpenError> {
    let client = MicrosoftAzureBuilder::from_env()
        .with_container_name(container)
        .with_retry(no_retries(options))
        .with_client_options(client_options(options))
        .build()
        .map_err(|error| {
            settings(
                url,
                &error,
                "set AZURE_STORAGE_ACCOUNT_NAME and credentials (AZURE_STORAGE_ACCOUNT_KEY, or AZURE_CLIENT_ID, …)",
            )
        })?;
    Ok(Arc::new(client))
}

pub(crate) fn settings(url: &BufferUrl, error: &object_store::Error, what_to_do: &str) -> OpenError {
    OpenError::Settings {
        url: url.to_string(),
        why: format!("{error}; {what_to_do}"),
    }
}

/// One attempt per request: see the comment at the top of `store.rs`.
pub(crate) fn no_retries(options: &StoreOptions) -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        retry_timeout: options.request_timeout,
        ..RetryConfig::default()
    }
}

pub(crate) fn client_options(options: &StoreOptions) -> ClientOptions {
    const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
    // S3 closes idle connections after about 20 s. Reusing one at that moment costs an unknown outcome.
    const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
    ClientOptions::new()
        .with_allow_http(options.allow_http)
        .with_timeout(options.request_timeout)
        .with_connect_timeout(CONNECT_TIMEOUT.min(options.request_timeout))
        .with_pool_idle_timeout(IDLE_TIMEOUT)
}
