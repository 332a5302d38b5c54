//! The examples at the end of each command's `--help`, and the program's description for shells and `man`.

use crate::output;
use anyhow::Context;
use clap::Command;
use std::fs;
use std::path::Path;

/// Each command that does something, and its examples: one a line.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "gateway",
        &[
            "millpond gateway --buffer s3://my-bucket/telemetry",
            "millpond gateway --buffer s3://my-bucket/telemetry --listen 0.0.0.0:4317 --tls-cert cert.pem --tls-key key.pem --tokens tokens.toml",
            "millpond gateway --buffer file:///var/lib/millpond --create-bucket --linger 250ms",
        ],
    ),
    (
        "consume",
        &[
            "millpond consume --buffer s3://my-bucket/telemetry --clickhouse http://127.0.0.1:8123",
            "millpond consume --config /etc/millpond.toml --consumer acme --streams 'acme.*' --database acme",
        ],
    ),
    #[cfg(feature = "bridge")]
    (
        "bridge kafka",
        &[
            "millpond bridge kafka --buffer s3://my-bucket/telemetry --brokers kafka-1:9092,kafka-2:9092 --topics orders,payments",
            "millpond bridge kafka --buffer s3://my-bucket/telemetry --brokers kafka:9093 --topics orders --group orders-loader --from committed --tls --sasl SCRAM-SHA-512 --sasl-user millpond --sasl-password-file password",
        ],
    ),
    (
        "dev",
        &["millpond dev", "millpond dev --directory /tmp/millpond-dev"],
    ),
    ("demo", &["DEMO_SECONDS=30 DEMO_RATE=100000 millpond demo"]),
    (
        "load",
        &[
            "millpond load --rate 10000 --duration 1m",
            "millpond load --endpoint 127.0.0.1:4317 --records 1000000 --json",
            "millpond load --format json --stream events.signup --records 10000",
        ],
    ),
    (
        "status",
        &[
            "millpond status --buffer s3://my-bucket/telemetry",
            "millpond status --buffer s3://my-bucket/telemetry --watch 5s",
        ],
    ),
    (
        "tail",
        &[
            "millpond tail --buffer s3://my-bucket/telemetry --stream otlp.logs",
            "millpond tail --buffer s3://my-bucket/telemetry --from 5m --grep 'status=error' --no-follow",
        ],
    ),
    (
        "consumer list",
        &["millpond consumer list --buffer s3://my-bucket/telemetry"],
    ),
    (
        "consumer wait",
        &["millpond consumer wait default --buffer s3://my-bucket/telemetry --timeout 5m"],
    ),
    (
        "consumer reset",
        &[
            "millpond consumer reset default --to 2026-11-22T10:00Z --buffer s3://my-bucket/telemetry",
            "millpond consumer reset default --to 30m --yes --buffer s3://my-bucket/telemetry",
        ],
    ),
    (
        "consumer repair",
        &[
            "millpond consumer repair default --from 1h --to latest --buffer s3://my-bucket/telemetry --clickhouse http://127.0.0.1:8123",
        ],
    ),
    (
        "consumer skip",
        &[
            "millpond consumer skip default --stream otlp.logs --sequence 4711 --reason 'damaged block' --buffer s3://my-bucket/telemetry",
        ],
    ),
    (
        "consumer remove",
        &["millpond consumer remove old --buffer s3://my-bucket/telemetry"],
    ),
    (
        "dead-letters list",
        &["millpond dead-letters list --consumer default --buffer s3://my-bucket/telemetry"],
    ),
    (
        "dead-letters show",
        &[
            "millpond dead-letters show shards/0000/dead-letters/default/… --buffer s3://my-bucket/telemetry",
            "millpond dead-letters show shards/0000/dead-letters/default/… --raw --payload message.pb --buffer s3://my-bucket/telemetry",
        ],
    ),
    (
        "dead-letters replay",
        &[
            "millpond dead-letters replay --all --buffer s3://my-bucket/telemetry --clickhouse http://127.0.0.1:8123",
            "millpond dead-letters replay --all-of default --buffer s3://my-bucket/telemetry --clickhouse http://127.0.0.1:8123",
        ],
    ),
    (
        "dead-letters remove",
        &["millpond dead-letters remove --all-of default --buffer s3://my-bucket/telemetry"],
    ),
    (
        "transform",
        &["millpond transform --transform transforms.toml --stream events.signup signup.ndjson"],
    ),
    (
        "tables print",
        &["millpond tables print --engine ReplicatedMergeTree --ttl 30d"],
    ),
    (
        "tables create",
        &["millpond tables create --clickhouse http://127.0.0.1:8123 --ttl 30d"],
    ),
    (
        "tables migrate",
        &["millpond tables migrate --clickhouse http://127.0.0.1:8123 --dry-run"],
    ),
    (
        "doctor",
        &[
            "millpond doctor --buffer s3://my-bucket/telemetry --clickhouse http://127.0.0.1:8123",
            "millpond doctor --buffer s3://my-bucket/telemetry --clickhouse http://127.0.0.1:8123 --rows --consumer default",
        ],
    ),
    (
        "buffer shards",
        &["millpond buffer shards 4 --buffer s3://my-bucket/telemetry"],
    ),
    (
        "buffer route",
        &[
            "millpond buffer route --unique unique.toml --buffer s3://my-bucket/telemetry",
            "millpond buffer route --buffer s3://my-bucket/telemetry",
        ],
    ),
    (
        "buffer unroute",
        &["millpond buffer unroute events.order --buffer s3://my-bucket/telemetry"],
    ),
    ("gc", &["millpond gc --buffer s3://my-bucket/telemetry --dry-run"]),
    (
        "manifest dump",
        &["millpond manifest dump --buffer s3://my-bucket/telemetry --json"],
    ),
    (
        "manifest check",
        &["millpond manifest check --buffer s3://my-bucket/telemetry"],
    ),
    (
        "segment dump",
        &["millpond segment dump s3://my-bucket/telemetry/shards/0000/segments/…"],
    ),
    ("config", &["millpond config consume > millpond.toml"]),
    (
        "completions",
        &["millpond completions bash > ~/.local/share/bash-completion/completions/millpond"],
    ),
    ("man", &["millpond man ~/.local/share/man/man1"]),
];

/// Maximum width of a line of an example, for terminals of 80 columns.
const WIDTH: usize = 78;

/// Breaks an example before its flags, as a shell accepts it.
fn folded(example: &str) -> String {
    let mut text = String::new();
    let mut width = 2;
    for (index, part) in example.split(" --").enumerate() {
        let part = if index == 0 {
            part.to_owned()
        } else {
            format!("--{part}")
        };
        // The backslash takes two columns.
        if index > 0 && width + 1 + part.chars().count() + 2 > WIDTH {
            text.push_str(" \\\n      ");
            width = 6;
        } else if index > 0 {
            text.push(' ');
            width += 1;
        }
        width += part.chars().count();
        text.push_str(&part);
    }
    text
}

/// Adds the examples to the long helps.
pub(crate) fn with_examples(command: Command) -> Command {
    EXAMPLES.iter().fold(command, |command, (path, examples)| {
        let path: Vec<&str> = path.split(' ').collect();
        let examples: Vec<String> = examples.iter().map(|example| folded(example)).collect();
        add(command, &path, &format!("Examples:\n  {}", examples.join("\n  ")))
    })
}

fn add(command: Command, path: &[&str], text: &str) -> Command {
    let [first, rest @ ..] = path else {
        return command.after_long_help(text.to_owned());
    };
    command.mut_subcommand(*first, |sub| add(sub, rest, text))
}

/// Prints the completions of a shell.
pub(crate) fn complete(mut command: Command, shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "millpond", &mut script);
    output::write(format_args!("{}", String::from_utf8_lossy(&script)))
}

/// Writes a man page for each command into a directory.
pub(crate) fn man(command: Command, directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    clap_mangen::generate_to(command, directory)
        .with_context(|| format!("cannot write man pages to {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// The commands without subcommands, as words.
    fn leaves(command: &Command, path: &str, found: &mut Vec<String>) {
        let subs: Vec<&Command> = command.get_subcommands().collect();
        if subs.is_empty() {
            found.push(path.trim().to_owned());
        }
        for sub in subs {
            leaves(sub, &format!("{path} {}", sub.get_name()), found);
        }
    }

    #[test]
    fn every_command_has_examples() {
        let mut all = Vec::new();
        leaves(&crate::Cli::command(), "", &mut all);
        // `cost` has its own, with the units.
        all.retain(|path| !path.starts_with("cost"));
        let mut described: Vec<&str> = EXAMPLES.iter().map(|(path, _)| *path).collect();
        described.sort_unstable();
        all.sort_unstable();
        assert_eq!(described, all);
    }

    #[test]
    fn a_long_example_is_folded_before_its_flags() {
        let folded = folded(EXAMPLES[0].1[1]);
        assert!(folded.lines().count() > 1, "{folded}");
        assert!(
            folded.lines().all(|line| line.chars().count() <= WIDTH),
            "{folded}"
        );
        assert_eq!(folded.replace(" \\\n      ", " "), EXAMPLES[0].1[1]);
    }

    #[test]
    fn every_example_is_a_command_line_that_the_program_accepts() {
        for (path, examples) in EXAMPLES {
            for example in *examples {
                let line = example.split(" > ").next().unwrap();
                let words = line.split(' ').skip_while(|word| *word != "millpond");
                // Quotes in the examples enclose single words, or the reason of a skip.
                let line = words
                    .collect::<Vec<_>>()
                    .join(" ")
                    .replace("'damaged block'", "damaged");
                let words: Vec<&str> = line.split(' ').map(|word| word.trim_matches('\'')).collect();
                let config = words.contains(&"--config");
                let command = with_examples(crate::Cli::command());
                let command = match config {
                    true => settings_of_an_example(command),
                    false => command,
                };
                assert!(line.starts_with(&format!("millpond {path}")), "{example}");
                if let Err(error) = command.try_get_matches_from(words) {
                    panic!("{example}: {error}");
                }
            }
        }
    }

    /// The file of the example has the required settings.
    fn settings_of_an_example(command: Command) -> Command {
        command.mut_subcommand("consume", |sub| {
            sub.mut_args(|arg| match arg.get_id().as_str() {
                "buffer" => arg.default_value("memory:///").required(false),
                "clickhouse" => arg.default_value("http://x").required(false),
                _ => arg,
            })
        })
    }
}
