//! S3 and compatible stores: the client, with credentials and region from the AWS SDK's default chain. If the AWS CLI
//! works, Millpond works.

mod bucket;

use crate::open::{OpenError, StoreOptions, client_options, no_retries, settings};
use crate::url::BufferUrl;
use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::imds::region::ImdsRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use millpond_runtime::{Environment as _, SystemEnvironment};
use object_store::aws::{AmazonS3Builder, AwsCredential, S3ConditionalPut};
use object_store::{CredentialProvider, ObjectStore};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::Mutex;

pub(crate) use bucket::Bucket;

/// The region for services without regions; it is also AWS's first one.
const DEFAULT_REGION: &str = "us-east-1";

pub(crate) async fn open(
    url: &BufferUrl,
    bucket: &str,
    options: &StoreOptions,
) -> Result<(Arc<dyn ObjectStore>, Bucket), OpenError> {
    let refuse = |why: String| OpenError::Settings {
        url: url.to_string(),
        why,
    };
    let config = load_config(options).await;
    let endpoint = options
        .endpoint
        .clone()
        .or_else(|| std::env::var("AWS_ENDPOINT_URL_S3").ok())
        .or_else(|| config.endpoint_url().map(str::to_owned))
        .filter(|endpoint| !endpoint.is_empty());
    let region = match (config.region(), &endpoint) {
        (Some(region), _) => region.as_ref().to_owned(),
        (None, Some(_)) => DEFAULT_REGION.to_owned(),
        (None, None) => {
            return Err(refuse(
                "no AWS region is set; pass --s3-region, set AWS_REGION or choose a profile that has one"
                    .to_owned(),
            ));
        }
    };
    let credentials = Arc::new(credentials(url, &config).await?);
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_region(&region)
        .with_credentials(Arc::clone(&credentials) as _)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        // One DELETE per object: free at AWS, and supported by every S3-compatible store.
        .with_disable_bulk_delete(true)
        .with_retry(no_retries(options));
    let mut client = client_options(options);
    builder = builder.with_unsigned_payload(has_tls(endpoint.as_deref()));
    if let Some(endpoint) = &endpoint {
        let plain = endpoint.starts_with("http://");
        if !plain && !endpoint.starts_with("https://") {
            return Err(refuse(format!(
                "the S3 endpoint {endpoint:?} must start with https:// or http://"
            )));
        }
        if plain && !options.allow_http && !is_this_machine(endpoint) {
            return Err(refuse(format!(
                "the S3 endpoint {endpoint:?} has no TLS and is on another machine; use https://, or pass --allow-http"
            )));
        }
        client = client.with_allow_http(plain);
        builder = builder.with_endpoint(endpoint);
    } else {
        // AWS prefers the bucket in the host name, but its certificate does not cover bucket names with dots.
        builder = builder.with_virtual_hosted_style_request(!bucket.contains('.'));
    }
    let objects = builder
        .with_client_options(client.clone())
        .build()
        .map_err(|error| settings(url, &error, "check the endpoint and the bucket's name"))?;
    let bucket = Bucket {
        credentials,
        client,
        endpoint: endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com")),
        region,
        name: bucket.to_owned(),
    };
    Ok((Arc::new(objects), bucket))
}

/// Whether requests use TLS, which protects their bodies: a signature over the SHA-256 of each body would take a gateway
/// several percent of its CPU. AWS always has TLS.
fn has_tls(endpoint: Option<&str>) -> bool {
    endpoint.is_none_or(|endpoint| endpoint.starts_with("https://"))
}

async fn load_config(options: &StoreOptions) -> SdkConfig {
    let given = options.region.clone().map(Region::new);
    let mut region = RegionProviderChain::first_try(given)
        .or_else(EnvironmentVariableRegionProvider::new())
        .or_else(ProfileFileRegionProvider::new());
    if options.endpoint.is_none() {
        // Only AWS has an instance to ask; elsewhere the request takes seconds to fail.
        region = region.or_else(ImdsRegionProvider::builder().build());
    }
    let mut loader = aws_config::defaults(BehaviorVersion::latest()).region(region);
    if let Some(given) = &options.credentials {
        loader = loader.credentials_provider(Credentials::new(
            &given.access_key_id,
            &given.secret_access_key,
            given.session_token.clone(),
            None,
            "millpond",
        ));
    }
    loader.load().await
}

fn is_this_machine(endpoint: &str) -> bool {
    let address = endpoint.trim_start_matches("http://");
    let authority = address.split('/').next().unwrap_or(address);
    let host = if authority.starts_with('[') {
        authority.split(']').next().unwrap_or(authority)
    } else {
        authority.split(':').next().unwrap_or(authority)
    };
    match host.trim_start_matches('[').parse::<std::net::IpAddr>() {
        Ok(ip) => ip.is_loopback(),
        Err(_) => host == "localhost",
    }
}

/// Finds credentials at once, so that missing ones fail the opening, and keeps them.
async fn credentials(url: &BufferUrl, config: &SdkConfig) -> Result<Chain, OpenError> {
    let why = match config.credentials_provider() {
        None => "the AWS SDK has no credentials chain".to_owned(),
        Some(provider) => {
            let chain = Chain {
                provider,
                kept: Mutex::new(None),
            };
            match chain.get().await {
                Ok(_) => return Ok(chain),
                Err(error) => told(&error),
            }
        }
    };
    Err(OpenError::Settings {
        url: url.to_string(),
        why: format!(
            "no AWS credentials were found ({why})\nwhatever works for `aws s3 ls` works here: a profile (AWS_PROFILE), \
             `aws sso login`, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role of the instance or the pod"
        ),
    })
}

/// The error and its causes as a sentence. The SDK's own display of a chain is Rust's debug output.
fn told(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut words: Vec<String> = Vec::new();
    for cause in causes.map(|cause| one_line(&cause.to_string())) {
        if words.last().is_none_or(|last| !last.contains(&cause)) {
            words.push(cause);
        }
    }
    words.join(": ")
}

/// The SDK lists the providers that it tried, one a line, each with the same prefix.
fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let text = lines.join("; ").replace("Attempted:; ", "Attempted: ");
    text.replace("the credential provider was not enabled: ", "")
}

/// The AWS SDK's credentials for `object_store`, kept until shortly before they expire.
#[derive(Debug)]
struct Chain {
    provider: SharedCredentialsProvider,
    kept: Mutex<Option<Kept>>,
}

#[derive(Debug, Clone)]
struct Kept {
    credential: Arc<AwsCredential>,
    refresh_at: SystemTime,
    expires_at: SystemTime,
}

/// Renew this long before the expiry: clocks differ, and a request may take a while.
const RENEW_BEFORE: Duration = Duration::from_secs(5 * 60);
/// Reload credentials without an expiry at this interval (somebody may have edited a file).
const LOOK_AGAIN: Duration = Duration::from_secs(15 * 60);

impl Chain {
    async fn get(&self) -> Result<Arc<AwsCredential>, CredentialsError> {
        // The lock is held while asking: of many requests at the moment of renewal, one asks and the others wait.
        let mut kept = self.kept.lock().await;
        let now = SystemEnvironment.system_time();
        if let Some(kept) = kept.as_ref().filter(|kept| now < kept.refresh_at) {
            return Ok(Arc::clone(&kept.credential));
        }
        match self.provider.provide_credentials().await {
            Ok(found) => {
                let fresh = Kept::new(&found, now);
                let credential = Arc::clone(&fresh.credential);
                *kept = Some(fresh);
                Ok(credential)
            }
            Err(error) => match kept.as_ref().filter(|kept| now < kept.expires_at) {
                Some(kept) => {
                    tracing::warn!(
                        error = %told(&error),
                        "cannot renew the AWS credentials; using the current ones until they expire"
                    );
                    Ok(Arc::clone(&kept.credential))
                }
                None => Err(error),
            },
        }
    }
}

impl Kept {
    fn new(found: &Credentials, now: SystemTime) -> Self {
        let expires_at = found.expiry();
        let refresh_at = expires_at.map_or(now + LOOK_AGAIN, |end| {
            end.checked_sub(RENEW_BEFORE).unwrap_or(now)
        });
        Self {
            credential: Arc::new(AwsCredential {
                key_id: found.access_key_id().to_owned(),
                secret_key: found.secret_access_key().to_owned(),
                token: found.session_token().map(str::to_owned),
            }),
            refresh_at,
            // Credentials without an expiry are good until the service refuses them.
            expires_at: expires_at.unwrap_or(now + Duration::from_secs(365 * 24 * 3600)),
        }
    }
}

#[async_trait::async_trait]
impl CredentialProvider for Chain {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.get().await.map_err(|error| object_store::Error::Generic {
            store: "S3",
            source: format!("no AWS credentials: {}", told(&error)).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn only_loopback_addresses_are_this_machine() {
        for here in ["http://127.0.0.1:9000", "http://localhost", "http://[::1]:9000/x"] {
            assert!(is_this_machine(here), "{here}");
        }
        for elsewhere in ["http://10.0.0.1:9000", "http://localhost.example.org", "http://"] {
            assert!(!is_this_machine(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn bodies_without_tls_are_signed() {
        assert!(has_tls(None) && has_tls(Some("https://minio.example.org")));
        assert!(!has_tls(Some("http://127.0.0.1:9000")));
    }

    /// Provides credentials that expire after `lives`, the first `good` times.
    #[derive(Debug)]
    struct Source {
        lives: Duration,
        good: u32,
        asked: Arc<AtomicU32>,
    }

    impl ProvideCredentials for Source {
        fn provide_credentials<'a>(&'a self) -> aws_credential_types::provider::future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            let asked = self.asked.fetch_add(1, Ordering::SeqCst);
            let answer = if asked < self.good {
                let end = SystemEnvironment.system_time() + self.lives;
                Ok(Credentials::new(
                    format!("key-{asked}"),
                    "s",
                    None,
                    Some(end),
                    "test",
                ))
            } else {
                Err(CredentialsError::not_loaded("nothing more"))
            };
            aws_credential_types::provider::future::ProvideCredentials::ready(answer)
        }
    }

    fn chain(lives: Duration, good: u32) -> (Chain, Arc<AtomicU32>) {
        let asked = Arc::new(AtomicU32::new(0));
        let source = Source {
            lives,
            good,
            asked: Arc::clone(&asked),
        };
        let chain = Chain {
            provider: SharedCredentialsProvider::new(source),
            kept: Mutex::new(None),
        };
        (chain, asked)
    }

    #[tokio::test]
    async fn credentials_are_asked_for_once_while_they_are_good() {
        let (chain, asked) = chain(Duration::from_secs(3600), 9);
        for _ in 0..5 {
            assert_eq!(chain.get().await.expect("credentials").key_id, "key-0");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn credentials_are_renewed_before_they_expire() {
        let (chain, _) = chain(Duration::from_secs(60), 9);
        assert_eq!(chain.get().await.expect("credentials").key_id, "key-0");
        assert_eq!(chain.get().await.expect("credentials").key_id, "key-1");
    }

    #[tokio::test]
    async fn credentials_at_hand_serve_while_renewal_fails() {
        let (chain, asked) = chain(Duration::from_secs(60), 1);
        for _ in 0..3 {
            assert_eq!(chain.get().await.expect("credentials").key_id, "key-0");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }
}
