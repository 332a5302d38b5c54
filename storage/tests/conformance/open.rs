//! Opening: errors for a missing, refused or unreachable store name a remedy.

use crate::minio;
use millpond_runtime::{SystemEnvironment, blocking};
use millpond_storage::testing::Minio;
use millpond_storage::{BufferUrl, Cas, Created, ErrorKind, OpenError, Store, StoreOptions};
use std::time::Duration;

fn url(text: &str) -> BufferUrl {
    BufferUrl::parse(text).expect("url")
}

#[tokio::test]
async fn a_missing_directory_is_an_error_unless_it_is_to_be_made() {
    let directory = tempfile::tempdir().expect("directory");
    let url = url(&format!("file://{}/a/b", directory.path().display()));
    let error = Store::open(&url, &StoreOptions::default())
        .await
        .expect_err("missing");
    assert!(matches!(error, OpenError::Missing { .. }), "{error}");
    assert!(error.to_string().contains("--create-bucket"), "{error}");
    let options = StoreOptions {
        create: true,
        ..StoreOptions::default()
    };
    for created in [Created::New, Created::Existed] {
        let store = Store::open(&url, &options).await.expect("open");
        assert_eq!(store.put_if_absent("k", vec!["x".into()]).await, Ok(created));
    }
}

#[tokio::test]
async fn a_file_is_no_directory() {
    let file = tempfile::NamedTempFile::new().expect("file");
    let url = url(&format!("file://{}", file.path().display()));
    let error = Store::open(&url, &StoreOptions::default())
        .await
        .expect_err("a file");
    assert!(error.to_string().contains("not a directory"), "{error}");
}

#[tokio::test]
async fn an_endpoint_elsewhere_without_tls_must_be_allowed() {
    let options = StoreOptions {
        endpoint: Some("http://192.0.2.1:9000".to_owned()),
        ..minio_like()
    };
    let error = Store::open(&url("s3://b"), &options).await.expect_err("no TLS");
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("--allow-http"), "{error}");
}

#[tokio::test]
async fn a_server_out_of_reach_is_a_transient_error() {
    // Nobody listens at a port that is taken and no more than that.
    let taken = tokio::net::TcpSocket::new_v4().expect("a socket");
    taken.bind(([127, 0, 0, 1], 0).into()).expect("bind");
    let endpoint = format!("http://{}", taken.local_addr().expect("address"));
    let options = StoreOptions {
        endpoint: Some(endpoint),
        ..minio_like()
    };
    let error = Store::open(&url("s3://b"), &options)
        .await
        .expect_err("nobody there");
    assert_eq!(error.kind(), ErrorKind::Transient);
    assert!(error.to_string().contains("refused"), "{error}");
}

fn minio_like() -> StoreOptions {
    StoreOptions {
        credentials: Some(millpond_storage::S3Credentials {
            access_key_id: "id".to_owned(),
            secret_access_key: "secret".to_owned(),
            session_token: None,
        }),
        region: Some("us-east-1".to_owned()),
        ..StoreOptions::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_is_made_or_told() {
    let minio = minio().await;
    let url = url("s3://not-there-yet/some/prefix");
    let options = StoreOptions {
        create: false,
        ..minio.options()
    };
    let error = Store::open(&url, &options).await.expect_err("no bucket");
    assert!(matches!(error, OpenError::Missing { .. }), "{error}");
    assert!(
        error.to_string().contains("aws s3 mb s3://not-there-yet"),
        "{error}"
    );
    let made = Store::open(&url, &minio.options()).await.expect("made");
    assert_eq!(made.put_if_absent("k", vec!["x".into()]).await, Ok(Created::New));
    // Now that the bucket exists, opening creates nothing and finds the existing data.
    let store = Store::open(&url, &options).await.expect("open");
    assert_eq!(store.head("k").await.expect("head").expect("there").size, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_credentials_are_told_apart() {
    let minio = minio().await;
    let mut options = minio.options();
    Store::open(&minio.url(), &options)
        .await
        .expect("the bucket is made");
    options.credentials = minio_like().credentials;
    let error = Store::open(&minio.url(), &options).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("InvalidAccessKeyId"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_and_comes_back_is_a_transient_trouble() {
    let mut minio = start().await;
    let store = Store::open(&minio.url(), &minio.options()).await.expect("open");
    let Cas::Committed(version) = store.compare_and_set("m", None, "1".into()).await else {
        panic!("committed");
    };
    minio.stop();
    let down = store.with_request_timeout(Duration::from_secs(5));
    let error = down.get("m").await.expect_err("stopped");
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    let cas = down.compare_and_set("m", Some(&version), "2".into()).await;
    assert!(matches!(cas, Cas::Unknown(_)), "{cas:?}");
    let minio = blocking::run(&SystemEnvironment, move || minio.restart().map(|()| minio))
        .await
        .expect("join")
        .expect("restart");
    // The server may briefly answer that it is still starting, which is also a transient error.
    let patience = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            match store.get("m").await {
                Ok(found) => break found.expect("there"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Transient, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let found = patience.await.expect("back");
    assert_eq!((found.bytes, &found.version), ("1".into(), &version));
    drop(minio);
}

async fn start() -> Minio {
    let started = blocking::run(&SystemEnvironment, Minio::start).await;
    started.expect("join").unwrap_or_else(|error| panic!("{error}"))
}
