//! A setting comes from its flag, else its `MILLPOND_…` variable, else the TOML file, else the default.
//! The flags' definitions are the one source of names, defaults and reasons; the file only
//! replaces defaults, and `millpond config` prints them.

use crate::environment;
use crate::settings_file::{self, Setting};
use crate::store::StoreArgs;
use anyhow::{Context, bail, ensure};
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command};
use std::error::Error as _;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

/// The commands that take settings from a file.
const COMMANDS: [&str; 2] = ["gateway", "consume"];

/// Settings whose values no help, error or list of defaults may show.
const SECRETS: [&str; 2] = ["clickhouse_password", "otlp_headers"];

/// Commands that share a consumer's settings: they take those that they know from `[consume]`.
const LIKE_CONSUME: [&[&str]; 6] = [
    &["doctor"],
    &["gc"],
    &["tables", "print"],
    &["tables", "create"],
    &["tables", "migrate"],
    &["dead-letters", "replay"],
];

/// Settings of a consumer alone: the same name means something else for the commands that are like it.
const OF_CONSUME: &str = "from";

/// A setting of every command that opens a buffer. `cost` lacks it, since it may run without one.
const OF_A_STORE: &str = "request_timeout";

/// Returns true for the settings of the buffer's location. Every command on a buffer takes them from the file.
fn says_where(name: &str) -> bool {
    let store = StoreArgs::augment_args(Command::new("store"));
    store.get_arguments().any(|arg| key(arg) == name)
}

/// Returns false for flags of the command line itself.
fn is_setting(arg: &Arg) -> bool {
    !matches!(
        arg.get_id().as_str(),
        "help" | "version" | "config" | "ignore-unknown-env"
    )
}

fn key(arg: &Arg) -> String {
    arg.get_id().as_str().replace('-', "_")
}

/// The program's command with the defaults of the file that the arguments or the environment name.
pub(crate) fn with_file(command: Command, arguments: &[OsString]) -> anyhow::Result<Command> {
    let Some(path) = file_named(arguments) else {
        return Ok(command);
    };
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    apply(command, &text).with_context(|| format!("settings file {}", path.display()))
}

fn file_named(arguments: &[OsString]) -> Option<PathBuf> {
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        if text == "--config" {
            return arguments.next().map(PathBuf::from);
        }
        if let Some(path) = text.strip_prefix("--config=") {
            return Some(PathBuf::from(path));
        }
    }
    std::env::var_os("MILLPOND_CONFIG").map(PathBuf::from)
}

/// Keys at the top apply to every command that knows them, those in `[gateway]` to that command alone, and those in
/// `[consume]` to the commands that share a consumer's settings. The buffer's location in any table applies to all commands.
fn apply(mut command: Command, text: &str) -> anyhow::Result<Command> {
    let settings = settings_file::parse(text, &COMMANDS).map_err(anyhow::Error::msg)?;
    for setting in &settings {
        command = apply_one(command, setting)
            .map_err(|error| anyhow::anyhow!("line {}: {error:#}", setting.line))?;
    }
    Ok(command)
}

fn apply_one(mut command: Command, setting: &Setting) -> anyhow::Result<Command> {
    let Setting {
        table, key, value, ..
    } = setting;
    let commands = match table {
        Some(table) => vec![table.as_str()],
        None => COMMANDS.to_vec(),
    };
    // Before it becomes a default: clap panics on one that does not parse.
    for arg in commands.iter().filter_map(|name| setting_of(&command, name, key)) {
        check_value(arg, key, value)?;
    }
    command = set(command, &commands, key, value)?;
    if setting.is_array && !takes_list(&command, key) {
        bail!("{key} is an array, but takes one value");
    }
    Ok(command)
}

/// The setting of a command with this name.
fn setting_of<'a>(command: &'a Command, sub: &str, name: &str) -> Option<&'a Arg> {
    let mut settings = command.find_subcommand(sub)?.get_arguments();
    settings.find(|arg| is_setting(arg) && key(arg) == name)
}

/// Checks the value as its flag does, so that the error names the file's line. An error never quotes a secret.
fn check_value(arg: &Arg, name: &str, value: &str) -> anyhow::Result<()> {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        ensure!(matches!(value, "true" | "false"), "{name} must be true or false");
        return Ok(());
    }
    let flag = arg.get_long().unwrap_or_default();
    let alone = Command::new("setting").no_binary_name(true).arg(arg.clone());
    let Err(error) = alone.try_get_matches_from([format!("--{flag}={value}")]) else {
        return Ok(());
    };
    if SECRETS.contains(&name) {
        bail!("{name} has a value that cannot be used");
    }
    let valid = match (error.source(), error.get(ContextKind::ValidValue)) {
        (Some(why), _) => why.to_string(),
        (None, Some(ContextValue::Strings(values))) => format!("use one of {}", values.join(", ")),
        (None, _) => "give another value".to_owned(),
    };
    if valid.starts_with(&format!("{value:?}")) {
        bail!("{name}: {valid}");
    }
    bail!("{name} cannot be {value:?}: {valid}")
}

/// Returns true if a setting of the services takes several values.
fn takes_list(command: &Command, name: &str) -> bool {
    let subs = COMMANDS.iter().filter_map(|sub| command.find_subcommand(sub));
    let mut settings = subs.flat_map(Command::get_arguments);
    settings.any(|arg| key(arg) == name && arg.get_value_delimiter().is_some())
}

/// Rejects a password on the command line.
pub(crate) fn check_secrets(matches: &ArgMatches) -> anyhow::Result<()> {
    const PASSWORD: &str = "clickhouse_password";
    let known = matches.ids().any(|id| id.as_str() == PASSWORD);
    if known && matches.value_source(PASSWORD) == Some(ValueSource::CommandLine) {
        bail!(
            "--clickhouse-password is refused: other users of the machine can see flags; give MILLPOND_CLICKHOUSE_PASSWORD or \
             --clickhouse-password-file"
        );
    }
    matches
        .subcommand()
        .map_or(Ok(()), |(_, inner)| check_secrets(inner))
}

/// Rejects unknown variables for the commands that take settings from the environment.
pub(crate) fn check_environment(command: &Command, matches: &ArgMatches) -> anyhow::Result<()> {
    let mut path = Vec::new();
    let mut inner = matches;
    while let Some((name, sub)) = inner.subcommand() {
        path.push(name);
        inner = sub;
    }
    let is_service = matches!(path[..], [name] if COMMANDS.contains(&name));
    if !is_service && !LIKE_CONSUME.contains(&&path[..]) {
        return Ok(());
    }
    let unknown = environment::unknown(command, environment::variables());
    ensure!(
        unknown.is_empty(),
        "{}\nunset it, or pass --ignore-unknown-env if something else needs it",
        unknown.join("\n")
    );
    Ok(())
}

fn set(mut command: Command, commands: &[&str], name: &str, text: &str) -> anyhow::Result<Command> {
    let mut known = Vec::new();
    let mut found = false;
    for command_name in commands {
        let Some(sub) = command.find_subcommand(command_name) else {
            continue;
        };
        if !sub.get_arguments().any(|a| is_setting(a) && key(a) == name) {
            known.extend(sub.get_arguments().filter(|a| is_setting(a)).map(key));
            continue;
        }
        found = true;
        command = with_default(command, &[command_name], name, text);
        if *command_name == "consume" && name != OF_CONSUME {
            for path in LIKE_CONSUME {
                command = with_default(command, path, name, text);
            }
        }
    }
    if found && says_where(name) {
        command = with_default_in_all(command, name, text);
    }
    if !found {
        // A key of the other table: a nearest name would send the reader astray.
        if let Some(owner) = COMMANDS
            .iter()
            .find(|sub| setting_of(&command, sub, name).is_some())
        {
            bail!("{name} is a setting of `millpond {owner}`: move it to [{owner}]");
        }
        let nearest = known
            .iter()
            .max_by(|a, b| strsim::jaro_winkler(a, name).total_cmp(&strsim::jaro_winkler(b, name)));
        let nearest = nearest.map_or(String::new(), |nearest| format!("; did you mean {nearest}?"));
        bail!("unknown key {name}{nearest} (`millpond config` lists all of them)");
    }
    Ok(command)
}

/// Sets this default in every subcommand that opens a buffer, except the services, which have their own.
fn with_default_in_all(command: Command, name: &str, default: &str) -> Command {
    let names: Vec<String> = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .collect();
    names.into_iter().fold(command, |command, sub| {
        command.mut_subcommand(sub, |sub| {
            let sub = with_default_in_all(sub, name, default);
            let opens = sub.get_arguments().any(|arg| key(arg) == OF_A_STORE);
            let is_service = COMMANDS.contains(&sub.get_name());
            if opens && !is_service {
                with_default(sub, &[], name, default)
            } else {
                sub
            }
        })
    })
}

/// Sets this default in the subcommand at the path's end, if it has the setting.
fn with_default(command: Command, path: &[&str], name: &str, default: &str) -> Command {
    match path {
        [first, rest @ ..] => {
            let first = (*first).to_owned();
            command.mut_subcommand(first, |sub| with_default(sub, rest, name, default))
        }
        [] => {
            let found = command.get_arguments().find(|a| is_setting(a) && key(a) == name);
            let Some(id) = found.map(|a| a.get_id().clone()) else {
                return command;
            };
            let default = default.to_owned();
            let secret = SECRETS.contains(&name);
            command.mut_arg(id, |arg| {
                arg.required(false)
                    .default_value(default)
                    .hide_default_value(secret)
            })
        }
    }
}

/// Every setting of the commands, as a TOML file with its reasons.
pub(crate) fn print(command: &Command, only: Option<&str>) -> String {
    let mut out = String::from(
        "# Every setting with its default and reason. A key at the top applies to both commands. `doctor`, `gc`,\n\
         # `tables` and `dead-letters replay` also take the settings of [consume] that they know, and every\n\
         # command on a buffer takes the buffer's location. A flag (--linger) overrides its variable\n\
         # (MILLPOND_LINGER), which overrides this file.\n",
    );
    for name in COMMANDS
        .iter()
        .filter(|name| only.is_none_or(|only| only == **name))
    {
        let Some(sub) = command.find_subcommand(name) else {
            continue;
        };
        let _ = write!(out, "\n[{name}]\n");
        // The help lists the buffer's settings last, since all commands share them; a file begins with them.
        let (of_buffer, others): (Vec<&Arg>, Vec<&Arg>) = sub
            .get_arguments()
            .filter(|arg| is_setting(arg))
            .partition(|arg| says_where(&key(arg)));
        for arg in of_buffer.into_iter().chain(others) {
            print_setting(&mut out, arg);
        }
    }
    out
}

fn print_setting(out: &mut String, arg: &Arg) {
    let help = arg
        .get_long_help()
        .or(arg.get_help())
        .map(ToString::to_string)
        .unwrap_or_default();
    for line in help.lines() {
        let _ = writeln!(out, "# {line}");
    }
    let default = arg
        .get_default_values()
        .first()
        .map(|v| v.to_string_lossy().into_owned());
    let key = key(arg);
    let _ = match (default, arg.get_action()) {
        (default, ArgAction::SetTrue) => writeln!(out, "{key} = {}", default.as_deref() == Some("true")),
        (Some(default), _) if default.parse::<i64>().is_ok() || default.parse::<bool>().is_ok() => {
            writeln!(out, "{key} = {default}")
        }
        (Some(default), _) => writeln!(out, "{key} = {}", toml::Value::String(default)),
        (None, _) if arg.is_required_set() => writeln!(out, "# {key} = …  (required)"),
        (None, _) => writeln!(out, "# {key} = …"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn command() -> Command {
        crate::Cli::command()
    }

    fn linger(arguments: &[&str], file: &str) -> String {
        let command = apply(command(), file).unwrap();
        let matches = command.try_get_matches_from(arguments).unwrap();
        let (_, sub) = matches.subcommand().unwrap();
        sub.get_one::<crate::units::Time>("linger").unwrap().to_string()
    }

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn a_flag_goes_before_the_file_and_the_file_before_the_default() {
        let plain = ["millpond", "gateway", "--buffer", "memory:///"];
        let flagged = ["millpond", "gateway", "--buffer", "memory:///", "--linger", "2s"];
        assert_eq!(linger(&plain, ""), "1s");
        assert_eq!(linger(&plain, "linger = \"250ms\""), "250ms");
        assert_eq!(linger(&plain, "[gateway]\nlinger = \"250ms\""), "250ms");
        assert_eq!(linger(&flagged, "linger = \"250ms\""), "2s");
    }

    #[test]
    fn a_required_setting_can_come_from_the_file() {
        let command = apply(command(), "buffer = \"memory:///\"").unwrap();
        command.try_get_matches_from(["millpond", "gateway"]).unwrap();
    }

    #[test]
    fn an_unknown_key_is_named_with_the_nearest_known_one() {
        let error = |file: &str| apply(command(), file).unwrap_err().to_string();
        assert!(error("lingr = \"1s\"").contains("unknown key lingr; did you mean linger?"));
        let misplaced = error("[consume]\nlinger = \"1s\"");
        assert_eq!(
            misplaced,
            "line 2: linger is a setting of `millpond gateway`: move it to [gateway]"
        );
        assert!(error("[gatway]\n").contains("unknown table [gatway]"));
        assert!(error("linger = [1]").contains("each value must be a string"));
        assert!(error("linger = [\"1s\"]").contains("takes one value"));
        assert!(error("clickhouse = []").contains("each value must be a string"));
        assert!(error("clickhouse = [\"http://a,http://b\"]").contains("without a comma"));
    }

    #[test]
    fn a_value_that_cannot_be_used_is_named_with_its_line_and_key() {
        let error = |file: &str| apply(command(), file).unwrap_err().to_string();
        assert_eq!(
            error("\n[gateway]\nmemory_limit = 5"),
            "line 3: memory_limit cannot be \"5\": use 16MiB or more"
        );
        assert_eq!(
            error("linger = \"soon\""),
            "line 1: linger: \"soon\" is not a length of time: write 250ms, 1s, 2m or 1h"
        );
        assert_eq!(
            error("[consume]\ntake_over = \"perhaps\""),
            "line 2: take_over must be true or false"
        );
        assert!(error("compression_level = 99").starts_with("line 1: compression_level cannot be \"99\": "));
        apply(command(), "memory_limit = \"64MiB\"\n[consume]\ntake_over = true").unwrap();
    }

    #[test]
    fn a_list_is_a_string_with_commas_or_an_array() {
        let addresses = |file: &str, flags: &[&str]| {
            let arguments = ["millpond", "consume", "--buffer", "memory:///"]
                .iter()
                .chain(flags);
            let matches = apply(command(), file)
                .unwrap()
                .try_get_matches_from(arguments)
                .unwrap();
            let (_, sub) = matches.subcommand().unwrap();
            let found = sub.get_many::<String>("clickhouse").unwrap();
            found.cloned().collect::<Vec<_>>()
        };
        let both = ["http://a", "http://b"];
        assert_eq!(
            addresses("[consume]\nclickhouse = \"http://a,http://b\"", &[]),
            both
        );
        assert_eq!(addresses("clickhouse = [\"http://a\", \"http://b\"]", &[]), both);
        let flags = ["--clickhouse", "http://a", "--clickhouse", "http://b"];
        assert_eq!(addresses("clickhouse = \"http://c\"", &flags), both);
    }

    #[test]
    fn a_secret_of_the_file_is_in_no_help_and_no_error() {
        let file = "[consume]\nbuffer = \"memory:///\"\nclickhouse = \"http://x\"\nclickhouse_password = \"hunter2\"\notlp_headers = \"a=hunter2\"\n";
        for words in [
            &["consume"][..],
            &["doctor"],
            &["tables", "print"],
            &["dead-letters", "replay"],
        ] {
            for help in ["-h", "--help"] {
                let arguments = ["millpond"].iter().chain(words).chain([&help]);
                let shown = apply(command(), file)
                    .unwrap()
                    .try_get_matches_from(arguments)
                    .unwrap_err();
                let shown = shown.render().to_string();
                assert!(shown.contains("Usage:") && !shown.contains("hunter2"), "{shown}");
            }
        }
        for (broken, place) in [
            ("clickhouse_password = hunter2", "line 1, column 23"),
            ("\nclickhouse_password = \"hunter2", "line 2, column 31"),
            ("otlp_headers = [\"hunter2\", 2]", "otlp_headers is an array"),
            ("clickhouse_password = \"hunter2\" hunter2", "line 1, column 33"),
            (
                "otlp_headers = { a = \"hunter2\" }",
                "unknown table [otlp_headers]",
            ),
        ] {
            let error = format!("{:#}", apply(command(), broken).unwrap_err());
            assert!(error.contains(place) && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_password_is_no_flag() {
        let check = |arguments: &[&str], file: &str| {
            let arguments = ["millpond"].iter().chain(arguments);
            let command = apply(command(), file).unwrap();
            check_secrets(&command.try_get_matches_from(arguments).unwrap())
        };
        let flag = ["--clickhouse-password", "hunter2"];
        let consume = ["consume", "--buffer", "memory:///", "--clickhouse", "http://x"];
        check(&consume, "[consume]\nclickhouse_password = \"hunter2\"").unwrap();
        let error = check(&[&consume[..], &flag].concat(), "")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("MILLPOND_CLICKHOUSE_PASSWORD") && !error.contains("hunter2"),
            "{error}"
        );
        check(&[&["tables", "print"][..], &flag].concat(), "").unwrap_err();
    }

    #[test]
    fn other_commands_share_the_consumers_table_settings() {
        let file =
            "buffer = \"memory:///\"\n[consume]\ndatabase = \"shop\"\nclickhouse = \"http://x\"\nwriters = 3";
        let command = apply(command(), file).unwrap();
        for path in LIKE_CONSUME.into_iter().filter(|path| *path != ["gc"]) {
            let mut arguments = vec!["millpond"];
            arguments.extend(path);
            if path.contains(&"replay") {
                arguments.push("letter");
            }
            let matches = command.clone().try_get_matches_from(arguments).unwrap();
            let mut sub = matches.subcommand().unwrap().1;
            while let Some((_, inner)) = sub.subcommand() {
                sub = inner;
            }
            assert_eq!(sub.get_one::<String>("database").unwrap(), "shop", "{path:?}");
        }
    }

    #[test]
    fn garbage_is_collected_by_hand_as_the_consumer_does_it() {
        let file = "[consume]\nbuffer = \"memory:///\"\ngc_grace = \"2h\"";
        let matches = apply(command(), file)
            .unwrap()
            .try_get_matches_from(["millpond", "gc"])
            .unwrap();
        let grace = matches
            .subcommand()
            .unwrap()
            .1
            .get_one::<crate::units::Time>("gc_grace");
        assert_eq!(grace.unwrap().to_string(), "2h");
    }

    #[test]
    fn every_command_finds_the_buffer_in_the_file() {
        for file in [
            "buffer = \"memory:///\"\ns3_region = \"eu-west-1\"\n[consume]\nconsumer = \"main\"\npoll_interval = \"9s\"",
            "[gateway]\nbuffer = \"memory:///\"\ns3_region = \"eu-west-1\"",
        ] {
            let command = apply(command(), file).unwrap();
            for words in [
                "status",
                "tail",
                "doctor",
                "gc",
                "buffer shards 2",
                "manifest dump",
                "consumer list",
                "consumer wait",
                "consumer remove other",
                "dead-letters list",
            ] {
                let arguments = ["millpond"].into_iter().chain(words.split(' '));
                let matches = command.clone().try_get_matches_from(arguments).unwrap();
                let mut sub = matches.subcommand().unwrap().1;
                while let Some((_, inner)) = sub.subcommand() {
                    sub = inner;
                }
                assert_eq!(
                    sub.get_one::<String>("s3_region").unwrap(),
                    "eu-west-1",
                    "{words}"
                );
            }
            // The consumer to remove needs a flag, and the consumer's poll interval is not tail's.
            command
                .clone()
                .try_get_matches_from(["millpond", "consumer", "remove"])
                .unwrap_err();
            let tail = command
                .clone()
                .try_get_matches_from(["millpond", "tail"])
                .unwrap();
            let every = tail
                .subcommand()
                .unwrap()
                .1
                .get_one::<crate::units::Time>("poll_interval");
            assert_eq!(every.unwrap().to_string(), "1s");
            // `cost` may run without a buffer.
            let cost = command
                .clone()
                .try_get_matches_from(["millpond", "cost", "--throughput", "1MB/s"]);
            assert!(!cost.unwrap().subcommand().unwrap().1.contains_id("buffer"));
        }
    }

    #[test]
    fn the_printed_settings_are_a_valid_file() {
        let printed = print(&command(), None);
        let command = apply(command(), &printed).unwrap();
        for name in COMMANDS {
            let arguments = [
                "millpond",
                name,
                "--buffer",
                "memory:///",
                "--clickhouse",
                "http://x",
            ];
            let count = if name == "gateway" { 4 } else { 6 };
            command.clone().try_get_matches_from(&arguments[..count]).unwrap();
        }
    }
}
