//! The settings that say where the buffer is, the same for every command.

use crate::admin::Admin;
use crate::units::{Time, pause};
use anyhow::Context;
use millpond_storage::{BufferUrl, ErrorKind, OpenError, Store, StoreOptions};
use std::time::Duration;
use tracing::warn;

const CANNOT: &str = "the buffer cannot be opened";

/// Between two attempts to open a store that is away.
const PAUSE: Duration = Duration::from_secs(1);

/// Which S3, and how to reach it.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct S3Args {
    /// The S3 service's address when it is not AWS, e.g. http://127.0.0.1:9000 for MinIO. Without it the AWS
    /// variables and profile are asked (AWS_ENDPOINT_URL).
    #[arg(long, env = "MILLPOND_S3_ENDPOINT", value_name = "URL")]
    s3_endpoint: Option<String>,

    /// The S3 region. Without it the AWS variables, the profile and the instance are asked. Credentials always
    /// come from the AWS SDK's own chain.
    #[arg(long, env = "MILLPOND_S3_REGION", value_name = "REGION")]
    s3_region: Option<String>,

    /// Allow an S3 endpoint without TLS on another machine. Off: what you send would be readable on the way.
    #[arg(long, env = "MILLPOND_ALLOW_HTTP")]
    allow_http: bool,
}

impl S3Args {
    /// The settings of a buffer there, all others by default.
    pub(crate) fn store(self, buffer: BufferUrl) -> StoreArgs {
        StoreArgs {
            buffer,
            s3: self,
            request_timeout: Time(StoreOptions::default().request_timeout),
            simulate_s3_latency: None,
        }
    }
}

/// Where the buffer is.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct StoreArgs {
    /// The buffer's URL: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///directory.
    #[arg(long, env = "MILLPOND_BUFFER", value_name = "URL", value_parser = BufferUrl::parse)]
    pub(crate) buffer: BufferUrl,

    #[command(flatten)]
    pub(crate) s3: S3Args,

    /// The longest that one request to the store may take. 30s: past that its outcome is looked up instead.
    #[arg(
        long,
        env = "MILLPOND_REQUEST_TIMEOUT",
        value_name = "TIME",
        default_value = "30s",
        value_parser = pause
    )]
    pub(crate) request_timeout: Time,

    /// Delay every request as S3 would, drawn with this seed. For benchmarks on a local store.
    #[arg(long, env = "MILLPOND_SIMULATE_S3_LATENCY", value_name = "SEED", hide = true)]
    pub(crate) simulate_s3_latency: Option<u64>,
}

impl StoreArgs {
    /// Opens the buffer's store; `create` makes a missing bucket or directory.
    pub(crate) async fn open(&self, create: bool) -> anyhow::Result<Store> {
        self.try_open(create).await.context(CANNOT)
    }

    /// The same for what runs for long: a store that is away is waited for, which `admin` shows.
    pub(crate) async fn open_patiently(&self, create: bool, admin: &Admin) -> anyhow::Result<Store> {
        let mut said = String::new();
        loop {
            let reason = match self.try_open(create).await {
                Err(error) if error.kind() == ErrorKind::Transient => format!("{CANNOT}: {error}"),
                opened => return opened.context(CANNOT),
            };
            if reason != said {
                warn!("{reason}; trying again");
                said.clone_from(&reason);
            }
            admin.ready_when(move || vec![reason.clone()]);
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
