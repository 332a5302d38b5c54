//! Finds `MILLPOND_…` variables that are no setting. A typing error in a name would otherwise leave a default in force.

use clap::Command;
use regex::Regex;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// The prefix of every variable of this program.
const PREFIX: &str = "MILLPOND_";

/// Variables that are no flags: those of the log, of the demo, of the embedded ClickHouse, and of the repository's scripts and tests
/// (`scripts/tools.sh` exports most of them, and developers run the program in the same shell).
const OTHERS: [&str; 24] = [
    "ADVISORIES",
    "BIN_DIR",
    "BROWSER",
    "CACHE",
    "CARGO_DEB",
    "COLLECTOR",
    "DEBIAN",
    "HELM",
    "KAFKA",
    "LIBCHDB",
    "LOG",
    "LOGHUB",
    "MINIO",
    "OTELCOL",
    "OTEL_EXPORTER",
    "OTEL_JS",
    "PROMETHEUS",
    "PYTHON",
    "REWRITE",
    "TELEMETRYGEN",
    "TOXIPROXY",
    "VERSITYGW",
    "ZIGBUILD",
    "ZOOKEEPER",
];

/// Families of such variables.
const FAMILIES: [&str; 2] = ["EMBEDDED_", "TEST_"];

/// Below this similarity another name is no help.
const SIMILAR: f64 = 0.8;

/// Variables that Kubernetes, and Docker's old links, derive from the name of a Service such as `millpond-gateway`.
static SERVICE: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = "^MILLPOND_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)$";
    Regex::new(pattern).expect("the pattern is valid")
});

/// Returns one sentence for each unknown variable, in the order of their names.
pub(crate) fn unknown(command: &Command, variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let mut known = BTreeSet::new();
    add_known(command, &mut known);
    let mut found: Vec<String> = variables
        .filter(|(name, value)| name.starts_with(PREFIX) && !known.contains(name) && !is_foreign(name, value))
        .map(|(name, _)| name)
        .collect();
    found.sort_unstable();
    found.iter().map(|name| sentence(name, &known)).collect()
}

/// The variables of this process.
pub(crate) fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().map(|(name, value)| {
        (
            name.to_string_lossy().into_owned(),
            value.to_string_lossy().into_owned(),
        )
    })
}

fn add_known(command: &Command, known: &mut BTreeSet<String>) {
    let variables = command.get_arguments().filter_map(clap::Arg::get_env);
    known.extend(variables.map(|name| name.to_string_lossy().into_owned()));
    for sub in command.get_subcommands() {
        add_known(sub, known);
    }
}

fn is_foreign(name: &str, value: &str) -> bool {
    let rest = name.strip_prefix(PREFIX).unwrap_or(name);
    // The value tells a Service's address from a number that a person wrote: MILLPOND_GATEWAY_PORT=tcp://10.0.0.7:4317.
    let is_address = ["tcp://", "udp://", "sctp://"]
        .iter()
        .any(|scheme| value.starts_with(scheme));
    OTHERS.contains(&rest)
        || FAMILIES.iter().any(|family| rest.starts_with(family))
        || SERVICE.is_match(name)
        || (name.ends_with("_PORT") && is_address)
}

fn sentence(name: &str, known: &BTreeSet<String>) -> String {
    let similarity = |other: &str| strsim::jaro_winkler(&name[PREFIX.len()..], &other[PREFIX.len()..]);
    let nearest = known
        .iter()
        .filter(|other| other.starts_with(PREFIX))
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
        .filter(|nearest| similarity(nearest) >= SIMILAR);
    match nearest {
        Some(nearest) => format!("{name} is not a setting; did you mean {nearest}?"),
        None => format!("{name} is not a setting (`millpond config` lists all of them)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn found(variables: &[(&str, &str)]) -> Vec<String> {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        unknown(&crate::Cli::command(), variables)
    }

    #[test]
    fn no_tool_of_the_repository_is_taken_for_a_setting() {
        let scripts =
            std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts")).expect("the scripts");
        let names = scripts.map(|script| {
            script
                .expect("a script")
                .file_name()
                .to_string_lossy()
                .into_owned()
        });
        let tools: Vec<String> = names
            .filter_map(|name| Some(name.strip_prefix("install-")?.strip_suffix(".sh")?.to_uppercase()))
            .collect();
        assert!(tools.len() > 10);
        for tool in tools {
            assert!(OTHERS.contains(&&*tool), "{tool}");
        }
    }

    #[test]
    fn a_mistyped_variable_is_named_with_the_nearest_one() {
        assert_eq!(
            found(&[
                ("MILLPOND_LINGR", "1s"),
                ("PATH", "/bin"),
                ("MILLPOND_BUFER", "x")
            ]),
            [
                "MILLPOND_BUFER is not a setting; did you mean MILLPOND_BUFFER?",
                "MILLPOND_LINGR is not a setting; did you mean MILLPOND_LINGER?",
            ]
        );
        assert_eq!(
            found(&[("MILLPOND_QQQ", "")]),
            ["MILLPOND_QQQ is not a setting (`millpond config` lists all of them)"]
        );
    }

    #[test]
    fn settings_of_any_command_and_of_the_tests_are_known() {
        let names = [
            "LINGER",
            "WRITERS",
            "TOKEN",
            "LOG",
            "LOG_FORMAT",
            "TEST_SEED",
            "EMBEDDED_PATH",
            "LIBCHDB",
        ];
        for name in names {
            assert!(found(&[(&format!("MILLPOND_{name}"), "x")]).is_empty(), "{name}");
        }
    }

    #[test]
    fn the_variables_of_a_service_are_no_settings() {
        let address = "tcp://10.43.0.7:4317";
        for (name, value) in [
            ("MILLPOND_SERVICE_HOST", "10.43.0.7"),
            ("MILLPOND_GATEWAY_SERVICE_HOST", "10.43.0.7"),
            ("MILLPOND_GATEWAY_SERVICE_PORT", "4317"),
            ("MILLPOND_GATEWAY_SERVICE_PORT_OTLP_GRPC", "4317"),
            ("MILLPOND_PORT", address),
            ("MILLPOND_GATEWAY_PORT", address),
            ("MILLPOND_GATEWAY_PORT_4317_TCP", address),
            ("MILLPOND_GATEWAY_PORT_4317_TCP_PROTO", "tcp"),
            ("MILLPOND_GATEWAY_PORT_4317_TCP_PORT", "4317"),
            ("MILLPOND_GATEWAY_PORT_4317_TCP_ADDR", "10.43.0.7"),
            ("MILLPOND_EU_1_CONSUMER_PORT_4381_TCP_ADDR", "10.43.0.7"),
        ] {
            assert!(found(&[(name, value)]).is_empty(), "{name}");
        }
        // A person wrote this one.
        assert_eq!(found(&[("MILLPOND_GATEWAY_PORT", "4317")]).len(), 1);
    }
}
