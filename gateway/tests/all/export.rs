//! The answer to a client and its timing: success only after the commit, and otherwise the code that makes it do the
//! right thing.

use std::time::Duration;

use crate::common::{EXPORT, PATIENCE, Pieces, framed, grpc_status, logs, logs_of, producer_config, start};
use hyper::StatusCode;
use millpond_gateway::{Config, Error};
use millpond_storage::unreliable::{Fault, On, Outage};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics,
};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Code;
use tonic::codec::CompressionEncoding;

#[tokio::test(flavor = "multi_thread")]
async fn success_comes_only_after_the_commit() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut commit = gateway.controls.hold(On::Put, "manifest");
    let mut client = gateway.client();
    let export = tokio::spawn(async move { client.export(logs(10)).await });
    timeout(PATIENCE, commit.arrived()).await.expect("a commit");
    assert!(!export.is_finished(), "answered before the commit");
    assert!(
        gateway
            .metrics()
            .contains("millpond_gateway_requests_in_flight{transport=\"grpc\"} 1\n"),
        "{}",
        gateway.metrics()
    );
    commit.release();
    let answer = timeout(PATIENCE, export)
        .await
        .expect("an answer")
        .expect("no panic");
    assert_eq!(answer.expect("success").into_inner().partial_success, None);
    let metrics = gateway.metrics();
    for line in [
        "millpond_gateway_requests_total{transport=\"grpc\",signal=\"logs\",code=\"OK\"} 1\n",
        "millpond_gateway_records_total{transport=\"grpc\",signal=\"logs\"} 10\n",
        "millpond_gateway_requests_in_flight{transport=\"grpc\"} 0\n",
    ] {
        assert!(metrics.contains(line), "{line} not in {metrics}");
    }
}

/// A span and a gauge with two data points, each through its own service.
#[tokio::test(flavor = "multi_thread")]
async fn every_signal_has_its_service_its_stream_and_its_count() {
    let gateway = start(producer_config(), Config::default()).await;
    let spans = ScopeSpans {
        spans: vec![Span::default()],
        ..ScopeSpans::default()
    };
    let traces = ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            scope_spans: vec![spans],
            ..ResourceSpans::default()
        }],
    };
    let gauge = Metric {
        data: Some(Data::Gauge(Gauge {
            data_points: vec![NumberDataPoint::default(); 2],
        })),
        ..Metric::default()
    };
    let scope = ScopeMetrics {
        metrics: vec![gauge],
        ..ScopeMetrics::default()
    };
    let metrics = ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            scope_metrics: vec![scope],
            ..ResourceMetrics::default()
        }],
    };
    let answers = async {
        gateway.client().export(logs(3)).await.expect("success");
        TraceServiceClient::new(gateway.channel())
            .export(traces)
            .await
            .expect("success");
        MetricsServiceClient::new(gateway.channel())
            .export(metrics)
            .await
            .expect("success");
        // A request with nothing to append succeeds too.
        TraceServiceClient::new(gateway.channel())
            .send_compressed(CompressionEncoding::Zstd)
            .export(ExportTraceServiceRequest::default())
            .await
            .expect("success");
    };
    timeout(PATIENCE, answers).await.expect("answers");
    let text = gateway.metrics();
    for (signal, requests, records) in [("logs", 1, 3), ("traces", 2, 1), ("metrics", 1, 2)] {
        for line in [
            format!(
                "millpond_gateway_requests_total{{transport=\"grpc\",signal=\"{signal}\",code=\"OK\"}} {requests}\n"
            ),
            format!("millpond_gateway_records_total{{transport=\"grpc\",signal=\"{signal}\"}} {records}\n"),
        ] {
            assert!(text.contains(&line), "{line} not in {text}");
        }
    }
    let manifest = gateway
        .store
        .get("shards/0000/manifest")
        .await
        .expect("the store answers")
        .expect("a manifest");
    for stream in ["otlp.logs", "otlp.traces", "otlp.metrics"] {
        let found = manifest
            .bytes
            .windows(stream.len())
            .any(|bytes| bytes == stream.as_bytes());
        assert!(found, "no stream {stream} in the manifest");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_service_refuses_what_is_not_its_own() {
    let gateway = start(producer_config(), Config::default()).await;
    // Field 6 is a number in a span and text in a log record.
    let record = |field: u8| [0x0a, 6, 0x12, 4, 0x12, 2, field, 0].to_vec();
    let body = || Pieces::of(framed(false, &record(0x30)));
    for (path, expected) in [
        ("trace.v1.TraceService", Code::Ok),
        ("logs.v1.LogsService", Code::InvalidArgument),
        ("metrics.v1.MetricsService", Code::Ok),
    ] {
        let path = format!("/opentelemetry.proto.collector.{path}/Export");
        let status = grpc_status(gateway.send_to(&path, "application/grpc", &[], body()).await).await;
        assert_eq!(status.code(), expected, "{path}: {status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_waits_for_the_store_to_return() {
    let gateway = start(producer_config(), Config::default()).await;
    gateway.controls.set_outage(Some(Outage::Fails));
    let mut client = gateway.client();
    let export = tokio::spawn(async move { client.export(logs(10)).await });
    let metrics = || gateway.metrics();
    let waiting = async {
        while !metrics().contains("millpond_gateway_requests_in_flight{transport=\"grpc\"} 1\n") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("a request in flight");
    gateway.controls.set_outage(None);
    timeout(PATIENCE, export)
        .await
        .expect("an answer")
        .expect("no panic")
        .expect("success");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_landed_unreported_is_a_success() {
    let gateway = start(producer_config(), Config::default()).await;
    gateway.controls.once(On::Put, "manifest", Fault::LandsUnreported);
    timeout(PATIENCE, gateway.client().export(logs(10)))
        .await
        .expect("an answer")
        .expect("success");
    assert_eq!(gateway.controls.unused(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_compression_is_accepted_and_the_same_records_counted() {
    let gateway = start(producer_config(), Config::default()).await;
    let request = logs_of(1000, 300);
    let raw = request.encoded_len();
    for encoding in [
        None,
        Some(CompressionEncoding::Gzip),
        Some(CompressionEncoding::Zstd),
    ] {
        let mut client = gateway.client();
        if let Some(encoding) = encoding {
            client = client.send_compressed(encoding);
        }
        timeout(PATIENCE, client.export(request.clone()))
            .await
            .expect("an answer")
            .expect("success");
    }
    let metrics = gateway.metrics();
    assert!(
        metrics.contains("millpond_gateway_records_total{transport=\"grpc\",signal=\"logs\"} 3000\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains(&format!(
            "millpond_gateway_raw_bytes_total{{transport=\"grpc\",signal=\"logs\"}} {}\n",
            3 * raw
        )),
        "{metrics}"
    );
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_at_once_are_all_answered_and_the_memory_is_given_back() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut clients = JoinSet::new();
    for _ in 0..50 {
        let client = gateway.client();
        clients.spawn(async move {
            for records in 1..=5 {
                client.clone().export(logs(records)).await.expect("success");
            }
        });
    }
    timeout(PATIENCE, clients.join_all()).await.expect("all answers");
    assert!(
        gateway
            .metrics()
            .contains("millpond_gateway_records_total{transport=\"grpc\",signal=\"logs\"} 750\n")
    );
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_records_is_success_without_an_append() {
    let gateway = start(producer_config(), Config::default()).await;
    gateway.controls.set_outage(Some(Outage::Hangs));
    for request in [logs(0), Default::default()] {
        timeout(PATIENCE, gateway.client().export(request))
            .await
            .expect("an answer")
            .expect("success");
    }
}

/// From google/rpc/error_details.proto.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

#[derive(Clone, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

fn retry_delay(status: &tonic::Status) -> Delay {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let details = RpcStatus::decode(status.details()).expect("google.rpc.Status");
    assert_eq!(details.code, Code::ResourceExhausted as i32);
    let [info] = &details.details[..] else {
        panic!("{details:?}")
    };
    assert_eq!(info.type_url, "type.googleapis.com/google.rpc.RetryInfo");
    RetryInfo::decode(&info.value[..])
        .expect("RetryInfo")
        .retry_delay
        .expect("a delay")
}

#[tokio::test(flavor = "multi_thread")]
async fn over_budget_is_resource_exhausted_with_retry_info_and_passes() {
    let config = Config {
        retry_after: Duration::from_millis(1500),
        ..Config::default()
    };
    let gateway = start(producer_config(), config).await;
    let budget = gateway.producers.budget();
    let everything = budget.reserve(budget.limit()).await.expect("all of it");
    for encoding in [None, Some(CompressionEncoding::Zstd)] {
        let mut client = gateway.client();
        if let Some(encoding) = encoding {
            client = client.send_compressed(encoding);
        }
        let refused = timeout(PATIENCE, client.export(logs(10)))
            .await
            .expect("an answer")
            .expect_err("no room");
        assert_eq!(
            retry_delay(&refused),
            Delay {
                seconds: 1,
                nanos: 500_000_000
            }
        );
        assert!(refused.message().contains("memory limit"), "{refused}");
    }
    drop(everything);
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_requests_are_refused_with_retry_info() {
    let gateway = start(
        producer_config(),
        Config {
            max_requests: 1,
            ..Config::default()
        },
    )
    .await;
    let mut commit = gateway.controls.hold(On::Put, "manifest");
    let mut client = gateway.client();
    let first = tokio::spawn(async move { client.export(logs(1)).await });
    timeout(PATIENCE, commit.arrived()).await.expect("a commit");
    let refused = timeout(PATIENCE, gateway.client().export(logs(1)))
        .await
        .expect("an answer")
        .expect_err("no room");
    assert_eq!(retry_delay(&refused), Delay { seconds: 1, nanos: 0 });
    commit.release();
    timeout(PATIENCE, first)
        .await
        .expect("an answer")
        .expect("no panic")
        .expect("success");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_is_closed_is_unavailable() {
    let gateway = start(producer_config(), Config::default()).await;
    gateway.producers.drain(PATIENCE).await.expect("drained");
    let refused = timeout(PATIENCE, gateway.client().export(logs(1)))
        .await
        .expect("an answer")
        .expect_err("closed");
    assert_eq!(refused.code(), Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_methods_are_unimplemented_and_other_content_is_not_grpc() {
    let gateway = start(producer_config(), Config::default()).await;
    let body = || Pieces::of(framed(false, &logs(1).encode_to_vec()));
    let profiles = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";
    let status = grpc_status(gateway.send_to(profiles, "application/grpc", &[], body()).await).await;
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(
        status.message().contains(profiles) && status.message().contains(EXPORT),
        "{status}"
    );
    let metrics = gateway.metrics();
    let line =
        "millpond_gateway_requests_total{transport=\"grpc\",signal=\"none\",code=\"UNIMPLEMENTED\"} 1\n";
    assert!(metrics.contains(line), "{metrics}");
    let status = gateway.send(&[("grpc-encoding", "snappy")], body()).await;
    assert_eq!(status.code(), Code::Unimplemented);
    assert_eq!(
        status.metadata().get("grpc-accept-encoding").expect("a header"),
        "identity,gzip,zstd"
    );
    // Drop the answer: an answer that is not read to its end keeps its connection open, which holds memory.
    let status = gateway
        .send_to(EXPORT, "application/json", &[], body())
        .await
        .status();
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_finishes_what_is_in_flight_and_accepts_nothing_more() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut commit = gateway.controls.hold(On::Put, "manifest");
    let mut client = gateway.client();
    let export = tokio::spawn(async move { client.export(logs(10)).await });
    timeout(PATIENCE, commit.arrived()).await.expect("a commit");
    gateway.shutdown.cancel();
    let refused = async {
        while tokio::net::TcpStream::connect(gateway.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, refused).await.expect("no more connections");
    assert!(!export.is_finished() && !gateway.served.is_finished());
    commit.release();
    timeout(PATIENCE, export)
        .await
        .expect("an answer")
        .expect("no panic")
        .expect("success");
    timeout(PATIENCE, gateway.served)
        .await
        .expect("an end")
        .expect("no panic")
        .expect("drained");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_takes_too_long_is_cut_off_and_reported() {
    let gateway = start(
        producer_config(),
        Config {
            drain_timeout: Duration::from_millis(50),
            ..Config::default()
        },
    )
    .await;
    let mut commit = gateway.controls.hold(On::Put, "manifest");
    let mut client = gateway.client();
    let export = tokio::spawn(async move { client.export(logs(10)).await });
    timeout(PATIENCE, commit.arrived()).await.expect("a commit");
    gateway.shutdown.cancel();
    let served = timeout(PATIENCE, gateway.served)
        .await
        .expect("an end")
        .expect("no panic");
    assert!(
        matches!(served, Err(Error::DrainTimeout { requests: 1, .. })),
        "{served:?}"
    );
    timeout(PATIENCE, export)
        .await
        .expect("an answer")
        .expect("no panic")
        .expect_err("not committed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_client_does_not_hold_up_a_drain() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut client = gateway.client();
    timeout(PATIENCE, client.export(logs(1)))
        .await
        .expect("an answer")
        .expect("success");
    gateway.shutdown.cancel();
    timeout(PATIENCE, gateway.served)
        .await
        .expect("an end")
        .expect("no panic")
        .expect("drained");
}
