use super::*;

fn resolve(args: &Options, variables: &[(&str, &str)]) -> anyhow::Result<Settings> {
    let identity = Identity {
        service: "millpond-gateway",
        instance: Some("gateway-1".to_owned()),
        attributes: vec![("millpond.buffer", "s3://b/p".to_owned())],
    };
    args.resolve(&identity, &|name| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

fn flags(endpoint: &str) -> Options {
    Options {
        endpoint: Some(endpoint.to_owned()),
        ..Options::default()
    }
}

/// The URL for metrics with these flags and variables.
fn url(args: &Options, variables: &[(&str, &str)]) -> Option<String> {
    let metrics = resolve(args, variables).unwrap().metrics;
    metrics.map(|metrics| metrics.destination.url.to_string())
}

fn error(args: &Options, variables: &[(&str, &str)]) -> String {
    format!("{:#}", resolve(args, variables).unwrap_err())
}

const NO_FLAGS: Options = Options {
    endpoint: None,
    headers: None,
    ca: None,
    interval: None,
    traces: None,
};
const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://env:4318/below/");

#[test]
fn nothing_is_pushed_unless_asked_for() {
    assert_eq!(url(&NO_FLAGS, &[]), None);
    assert_eq!(url(&NO_FLAGS, &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), None);
    assert_eq!(url(&NO_FLAGS, &[ENDPOINT, ("OTEL_SDK_DISABLED", "True")]), None);
    assert_eq!(
        url(&NO_FLAGS, &[ENDPOINT, ("OTEL_METRICS_EXPORTER", "none")]),
        None
    );
}

#[test]
fn a_flag_goes_before_the_variable_of_a_signal_and_that_before_the_one_for_all() {
    let own = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://own:1/as/it/is");
    let expected = Some("http://env:4318/below/v1/metrics".to_owned());
    assert_eq!(url(&NO_FLAGS, &[ENDPOINT]), expected);
    assert_eq!(
        url(
            &NO_FLAGS,
            &[ENDPOINT, ("OTEL_METRICS_EXPORTER", "prometheus,otlp")]
        ),
        expected
    );
    assert_eq!(
        url(&NO_FLAGS, &[ENDPOINT, own]),
        Some("http://own:1/as/it/is".to_owned())
    );
    let flag = Some("https://flag/v1/metrics".to_owned());
    assert_eq!(url(&flags("https://flag"), &[ENDPOINT, own]), flag);
    assert_eq!(
        url(&flags("https://flag"), &[("OTEL_SDK_DISABLED", "true")]),
        flag
    );
}

#[test]
fn variables_have_the_units_of_the_specification() {
    let variables = [
        ENDPOINT,
        ("OTEL_METRIC_EXPORT_INTERVAL", "1500"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
    ];
    let metrics = resolve(&NO_FLAGS, &variables).unwrap().metrics.unwrap();
    assert_eq!(metrics.interval, Duration::from_millis(1500));
    assert_eq!(metrics.destination.timeout, Duration::from_millis(2500));
    assert!(metrics.destination.gzip);
    let by_default = resolve(&NO_FLAGS, &[ENDPOINT]).unwrap().metrics.unwrap();
    assert_eq!(by_default.interval, Duration::from_secs(60));
    assert_eq!(by_default.destination.timeout, Duration::from_secs(10));
    assert!(!by_default.destination.gzip);
    let flag = Options {
        interval: Some(Duration::from_secs(5)),
        ..NO_FLAGS
    };
    let flagged = resolve(&flag, &variables).unwrap().metrics.unwrap();
    assert_eq!(flagged.interval, Duration::from_secs(5));
}

#[test]
fn headers_are_decoded_and_hidden() {
    let variables = [
        ENDPOINT,
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            " authorization = Bearer%20a%2Cb , x-team=ops",
        ),
    ];
    let metrics = resolve(&NO_FLAGS, &variables).unwrap().metrics.unwrap();
    let headers = &metrics.destination.headers;
    assert_eq!(headers["authorization"], "Bearer a,b");
    assert_eq!(headers["x-team"], "ops");
    assert!(!format!("{headers:?}").contains("Bearer"));
}

#[test]
fn the_resource_says_who_it_is() {
    let of = |variables: &[(&str, &str)]| -> Vec<String> {
        let resource = resolve(&NO_FLAGS, variables).unwrap().resource;
        let text = |attribute: &KeyValue| match &attribute.value.as_ref().unwrap().value {
            Some(Value::StringValue(value)) => format!("{}={value}", attribute.key),
            other => panic!("{other:?}"),
        };
        resource.iter().map(text).collect()
    };
    let version = concat!("service.version=", env!("CARGO_PKG_VERSION"));
    assert_eq!(
        of(&[ENDPOINT]),
        [
            "service.name=millpond-gateway",
            version,
            "service.instance.id=gateway-1",
            "millpond.buffer=s3://b/p"
        ]
    );
    let given = (
        "OTEL_RESOURCE_ATTRIBUTES",
        "service.instance.id=pod%2F3,deployment.environment.name=prod,service.name=lost",
    );
    assert_eq!(
        of(&[ENDPOINT, given, ("OTEL_SERVICE_NAME", "edge")]),
        [
            "service.name=edge",
            version,
            "service.instance.id=pod/3",
            "millpond.buffer=s3://b/p",
            "deployment.environment.name=prod"
        ]
    );
}

#[test]
fn traces_are_pushed_when_a_ratio_says_so() {
    let sampled = |ratio, variables: &[(&str, &str)]| {
        let args = Options {
            traces: ratio,
            ..NO_FLAGS
        };
        let traces = resolve(&args, &[variables, &[ENDPOINT]].concat()).unwrap().traces;
        traces.map(|traces| (traces.sampler, traces.destination.url.to_string()))
    };
    let of = |ratio| Some((Sampler::new(ratio), "http://env:4318/below/v1/traces".to_owned()));
    let sampler = |name| ("OTEL_TRACES_SAMPLER", name);
    let argument = ("OTEL_TRACES_SAMPLER_ARG", "0.25");
    assert_eq!(sampled(None, &[]), None);
    assert_eq!(sampled(None, &[argument]), None);
    assert_eq!(sampled(Some(0.5), &[]), of(0.5));
    assert_eq!(sampled(Some(0.0), &[sampler("always_on")]), None);
    assert_eq!(sampled(None, &[sampler("always_on"), argument]), of(1.0));
    assert_eq!(sampled(None, &[sampler("traceidratio"), argument]), of(0.25));
    assert_eq!(sampled(None, &[sampler("parentbased_traceidratio")]), of(1.0));
    assert_eq!(sampled(None, &[sampler("always_off")]), None);
    assert_eq!(sampled(Some(1.0), &[("OTEL_BSP_SCHEDULE_DELAY", "10")]), of(1.0));
    let nowhere = Options {
        traces: Some(1.0),
        ..NO_FLAGS
    };
    assert!(error(&nowhere, &[]).contains("give --otlp-endpoint too"));
    let too_many = Options {
        traces: Some(1.5),
        ..NO_FLAGS
    };
    assert!(error(&too_many, &[ENDPOINT]).starts_with("--otlp-traces: 1.5 is not a ratio"));
    let message = error(
        &NO_FLAGS,
        &[
            ENDPOINT,
            sampler("traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "half"),
        ],
    );
    assert!(
        message.starts_with("OTEL_TRACES_SAMPLER_ARG: \"half\" is not a number"),
        "{message}"
    );
    assert!(error(&NO_FLAGS, &[ENDPOINT, sampler("xray")]).starts_with("OTEL_TRACES_SAMPLER=xray: "));
}

#[test]
fn unusable_values_are_reported_with_their_names() {
    assert!(error(&flags("collector:4318"), &[]).starts_with("--otlp-endpoint: \"collector:4318\" is not"));
    assert!(error(&flags("grpc://collector:4317"), &[]).contains("write http://host:4318"));
    let headers = Options {
        headers: Some("a=b,secret".to_owned()),
        ..flags("http://x")
    };
    let message = error(&headers, &[]);
    assert!(
        message.starts_with("--otlp-headers: entry 2 is not name=value"),
        "{message}"
    );
    assert!(!message.contains("secret"));
    for (variable, value, reason) in [
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "a b=c",
            "\"a b\" is not a header's name",
        ),
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "a=%0A",
            "the value of a cannot be a header's",
        ),
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "a=%FF",
            "the value of a is not UTF-8",
        ),
        (
            "OTEL_EXPORTER_OTLP_TIMEOUT",
            "10s",
            "\"10s\" is not a number of milliseconds",
        ),
        (
            "OTEL_METRIC_EXPORT_INTERVAL",
            "0",
            "\"0\" is not a number of milliseconds",
        ),
        ("OTEL_RESOURCE_ATTRIBUTES", "team", "entry 1 is not name=value"),
    ] {
        let message = error(&NO_FLAGS, &[ENDPOINT, (variable, value)]);
        assert!(message.starts_with(&format!("{variable}: {reason}")), "{message}");
    }
    let message = error(&NO_FLAGS, &[ENDPOINT, ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd")]);
    assert!(
        message.starts_with("OTEL_EXPORTER_OTLP_COMPRESSION=zstd: "),
        "{message}"
    );
    let message = error(
        &NO_FLAGS,
        &[ENDPOINT, ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "key.pem")],
    );
    assert!(message.contains("belong together"), "{message}");
}

/// A cluster's variables must not keep a gateway from starting.
#[test]
fn an_unsupported_protocol_is_reported_and_ends_nothing() {
    for (variable, value) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json"),
    ] {
        let settings = resolve(&NO_FLAGS, &[ENDPOINT, (variable, value)]).unwrap();
        assert!(settings.metrics.is_none());
        let [message] = &*settings.unspoken else {
            panic!("{:?}", settings.unspoken)
        };
        assert!(
            message.starts_with("own metrics are not pushed to http"),
            "{message}"
        );
        assert!(message.contains(&format!("{variable}={value}")), "{message}");
    }
    let traced = ("OTEL_TRACES_SAMPLER", "always_on");
    let grpc = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    assert_eq!(
        resolve(&NO_FLAGS, &[ENDPOINT, grpc, traced])
            .unwrap()
            .unspoken
            .len(),
        2
    );
    for silent in [
        ("OTEL_METRICS_EXPORTER", "none"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf"),
    ] {
        let settings = resolve(&NO_FLAGS, &[ENDPOINT, grpc, silent]).unwrap();
        assert!(settings.unspoken.is_empty(), "{:?}", settings.unspoken);
    }
    let settings = resolve(&flags("http://host:4318"), &[ENDPOINT, grpc]).unwrap();
    assert!(settings.metrics.is_some() && settings.unspoken.is_empty());
}
