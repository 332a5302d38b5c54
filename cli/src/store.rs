//! The settings of the buffer's location, the same for every command.

use crate::admin::Admin;
use crate::units::{Time, pause};
use anyhow::Context;
use millpond_runtime::{Level, Readiness};
use millpond_storage::{BufferUrl, ErrorKind, OpenError, Store, StoreOptions};
use std::time::Duration;

const CANNOT: &str = "the buffer cannot be opened";

/// Time between two attempts to open a store during its outage.
const PAUSE: Duration = Duration::from_secs(1);

/// The S3 service.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct S3Args {
    /// Address of an S3 service other than AWS, such as http://127.0.0.1:9000 for MinIO. Default: from the AWS variables and
    /// profile (AWS_ENDPOINT_URL).
    #[arg(long, env = "MILLPOND_S3_ENDPOINT", value_name = "URL")]
    s3_endpoint: Option<String>,

    /// S3 region. Default: from the AWS variables, the profile or the instance. Credentials always come from the AWS SDK's
    /// chain.
    #[arg(long, env = "MILLPOND_S3_REGION", value_name = "REGION")]
    s3_region: Option<String>,

    /// Allow an S3 endpoint without TLS on another machine. Default: off, since others could read the data in transit.
    #[arg(long, env = "MILLPOND_ALLOW_HTTP")]
    allow_http: bool,
}

impl S3Args {
    /// The settings of a buffer in this service, with defaults for all others.
    pub(crate) fn store(self, buffer: BufferUrl) -> StoreArgs {
        StoreArgs {
            buffer,
            s3: self,
            request_timeout: Time(StoreOptions::default().request_timeout),
            simulate_s3_latency: None,
        }
    }
}

/// The buffer's location.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct StoreArgs {
    /// The buffer's URL: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///directory.
    #[arg(long, env = "MILLPOND_BUFFER", value_name = "URL", value_parser = BufferUrl::parse)]
    pub(crate) buffer: BufferUrl,

    #[command(flatten)]
    pub(crate) s3: S3Args,

    /// Maximum time for one request to the store. After that, the process looks up the outcome instead.
    #[arg(
        long,
        env = "MILLPOND_REQUEST_TIMEOUT",
        value_name = "TIME",
        default_value = "30s",
        value_parser = pause
    )]
    pub(crate) request_timeout: Time,

    /// Delay every request like S3, with random latencies from this seed. For benchmarks on a local store.
    #[arg(long, env = "MILLPOND_SIMULATE_S3_LATENCY", value_name = "SEED", hide = true)]
    pub(crate) simulate_s3_latency: Option<u64>,
}

impl StoreArgs {
    /// Opens the buffer's store; `create` makes a missing bucket or directory.
    pub(crate) async fn open(&self, create: bool) -> anyhow::Result<Store> {
        self.try_open(create).await.context(CANNOT)
    }

    /// Like [`open`](Self::open), for a service: waits for a store during its outage, and shows the reason on `admin`.
    pub(crate) async fn open_patiently(&self, create: bool, admin: &Admin) -> anyhow::Result<Store> {
        let readiness = Readiness::default();
        loop {
            let error = match self.try_open(create).await {
                Err(error) if error.kind() == ErrorKind::Transient => error,
                opened => return opened.context(CANNOT),
            };
            readiness.waits(CANNOT, error, Level::Warn);
            admin.reports(readiness.clone());
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn try_open(&self, create: bool) -> Result<Store, OpenError> {
        let options = StoreOptions {
            endpoint: self.s3.s3_endpoint.clone(),
            region: self.s3.s3_region.clone(),
            allow_http: self.s3.allow_http,
            request_timeout: self.request_timeout.0,
            create,
            simulate_s3_latency: self.simulate_s3_latency,
            ..StoreOptions::default()
        };
        Store::open(&self.buffer, &options).await
    }
}
