//! Compiles a program and runs it over one event. Only the members that the program names are parsed; the text of the others
//! goes into the row as it is.

use super::walk::Walk;
use super::{ROW_BYTES_MAX, arguments, functions, json, products};
use crate::events::json::{members, unescaped};
use chrono::DateTime;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use vrl::compiler::runtime::{Runtime, Terminate};
use vrl::compiler::state::ExternalEnv;
use vrl::compiler::{
    CompilationResult, CompileConfig, ExpressionError, ProgramInfo, TargetValue, TimeZone,
    compile_with_external,
};
use vrl::diagnostic::{DiagnosticList, DiagnosticMessage, Formatter};
use vrl::path::{OwnedSegment, PathPrefix};
use vrl::value::kind::Collection;
use vrl::value::{KeyString, Kind, ObjectMap, Secrets, Value};

/// The metadata `%received_at`.
const RECEIVED_AT: &str = "received_at";

pub(super) struct Program {
    program: vrl::compiler::Program,
    touches: Touches,
    takes_the_square: bool,
    reads_metadata: bool,
    time_zone: TimeZone,
}

/// The part of an event that a program may read or write.
#[derive(Debug, PartialEq, Eq)]
enum Touches {
    /// The event as a whole.
    All,
    /// The members with these keys.
    Keys(BTreeSet<String>),
}

/// The state of a program that runs over event after event.
#[derive(Default)]
pub(super) struct Runner {
    runtime: Runtime,
    kept: BTreeMap<KeyString, Kept>,
}

/// A member whose text says more than its value.
struct Kept {
    value: Value,
    /// The text's place in the event.
    text: (usize, usize),
}

impl Program {
    /// Compiles a program, and returns it with the compiler's warnings.
    pub(super) fn compile(name: &str, source: &str) -> Result<(Program, Option<String>), String> {
        let event = Kind::object(Collection::any());
        let metadata = Collection::empty().with_known(RECEIVED_AT, Kind::timestamp());
        let external = ExternalEnv::new_with_kind(event, Kind::object(metadata));
        let show = |diagnostics: DiagnosticList| {
            let shown = Formatter::new(source, diagnostics).to_string();
            // That place has other functions than ours.
            let lines = shown.lines().filter(|line| !line.contains("VRL REPL"));
            let lines: Vec<&str> = lines.collect();
            lines.join("\n").replace("┌─ :", &format!("┌─ {name}:"))
        };
        let compiled = compile_with_external(source, &functions::all(), &external, CompileConfig::default());
        let CompilationResult {
            program, warnings, ..
        } = compiled.map_err(show)?;
        let walk = Walk::over(source).map_err(show)?;
        let refused = products::refused(&walk)
            .into_iter()
            .chain(arguments::refused(&walk));
        let refused: Vec<_> = refused
            .map(|refusal| Box::new(refusal) as Box<dyn DiagnosticMessage>)
            .collect();
        if !refused.is_empty() {
            return Err(show(refused.into()));
        }
        let warnings = (!warnings.is_empty()).then(|| show(warnings));
        let info = program.info();
        let paths = info.target_queries.iter().chain(&info.target_assignments);
        let reads_metadata = paths.clone().any(|path| path.prefix == PathPrefix::Metadata);
        let program = Program {
            takes_the_square: arguments::takes_the_square(&walk),
            touches: Touches::of(info),
            reads_metadata,
            time_zone: TimeZone::parse("UTC").ok_or("there is no time zone UTC")?,
            program,
        };
        Ok((program, warnings))
    }

    /// The bytes of the largest event that the program runs over unless somebody allows more.
    pub(super) fn event_bytes_max(&self) -> usize {
        match self.takes_the_square {
            true => 32 << 10,
            false => 256 << 10,
        }
    }

    /// Appends the row for an event. Returns false if the program drops it.
    pub(super) fn run(
        &self,
        runner: &mut Runner,
        source: &str,
        event: &str,
        received_at_us: i64,
        row: &mut String,
    ) -> Result<bool, String> {
        if !event.starts_with('{') {
            return Err("$: the event is not an object".to_owned());
        }
        let Runner { runtime, kept } = runner;
        runtime.clear();
        kept.clear();
        row.push('{');
        let value = Value::Object(self.read(event, kept, row)?);
        let mut metadata = ObjectMap::new();
        if self.reads_metadata {
            let at = DateTime::from_timestamp_micros(received_at_us).unwrap_or_default();
            metadata.insert(RECEIVED_AT.into(), Value::Timestamp(at));
        }
        let mut target = TargetValue {
            value,
            metadata: Value::Object(metadata),
            secrets: Secrets::default(),
        };
        match runtime.resolve(&mut target, &self.program, &self.time_zone) {
            Ok(_) => {}
            Err(Terminate::Abort(ExpressionError::Abort { .. })) => return Ok(false),
            Err(Terminate::Abort(error) | Terminate::Error(error)) => return Err(reason(source, &error)),
        }
        let Value::Object(made) = target.value else {
            return Err(format!(
                "the program leaves {} in `.`, which is not an object: use `abort` to drop an event",
                target.value.kind_str()
            ));
        };
        for (key, value) in &made {
            start_member(row, key);
            let same = kept.get(key);
            let written = match same {
                Some(Kept { value: before, text }) => {
                    let (start, end) = *text;
                    json::write_over(value, before, &event[start..end], row, ROW_BYTES_MAX)
                }
                None => json::write(value, row, ROW_BYTES_MAX),
            };
            written.map_err(|fault| format!("$.{key}{}: {}", fault.path, fault.reason))?;
            if row.len() > ROW_BYTES_MAX {
                return Err(json::too_large(ROW_BYTES_MAX));
            }
        }
        row.push('}');
        Ok(true)
    }

    /// Parses the members that the program touches, and passes the others on to the row.
    fn read(
        &self,
        event: &str,
        kept: &mut BTreeMap<KeyString, Kept>,
        row: &mut String,
    ) -> Result<ObjectMap, String> {
        let mut touched = ObjectMap::new();
        members(event, |key, text| {
            // No column and no program has half of a surrogate pair in its name.
            let Some(key) = unescaped(key) else { return Ok(()) };
            if let Touches::Keys(keys) = &self.touches
                && !keys.contains(&*key)
            {
                start_member(row, &key);
                row.push_str(text);
                return Ok(());
            }
            let (value, is_plain) = json::read(text).map_err(|fault| format!("$.{key}: {}", fault.reason))?;
            let key = KeyString::from(&*key);
            // The last of equal keys counts.
            if is_plain {
                kept.remove(&key);
            } else {
                let start = text.as_ptr() as usize - event.as_ptr() as usize;
                let text = (start, start + text.len());
                let value = value.clone();
                kept.insert(key.clone(), Kept { value, text });
            }
            touched.insert(key, value);
            Ok::<_, String>(())
        })?;
        Ok(touched)
    }
}

fn start_member(row: &mut String, key: &str) {
    if row.len() > 1 {
        row.push(',');
    }
    json::write_text(key, row);
    row.push(':');
}

impl Touches {
    fn of(info: &ProgramInfo) -> Touches {
        let paths = info.target_queries.iter().chain(&info.target_assignments);
        let keys = paths.filter(|path| path.prefix == PathPrefix::Event).map(|path| {
            match path.path.segments.first() {
                Some(OwnedSegment::Field(key)) => Some(key.to_string()),
                Some(OwnedSegment::Index(_)) | None => None,
            }
        });
        keys.collect::<Option<_>>().map_or(Touches::All, Touches::Keys)
    }
}

/// An error of a program, with lines and columns in the place of its offsets.
fn reason(source: &str, error: &ExpressionError) -> String {
    let message = error.to_string();
    let mut shown = String::new();
    let mut rest = message.as_str();
    let call = "function call error for ";
    while let Some((before, after)) = rest.split_once(call) {
        let Some((function, span, after)) = call_at(after) else {
            break;
        };
        shown.push_str(before);
        shown.push_str(&format!("{} at {}: ", function, place(source, span)));
        rest = after;
    }
    shown.push_str(rest);
    shown
}

/// The function, its offset and the rest of `"to_int" at (8:20): …`.
fn call_at(text: &str) -> Option<(Cow<'_, str>, usize, &str)> {
    let (function, rest) = text.strip_prefix('"')?.split_once("\" at (")?;
    let (start, rest) = rest.split_once(':')?;
    let (_, rest) = rest.split_once("): ")?;
    Some((function.into(), start.parse().ok()?, rest))
}

fn place(source: &str, offset: usize) -> String {
    let before = source.get(..offset).unwrap_or(source);
    let line = 1 + before.matches('\n').count();
    let column = 1 + before.rsplit('\n').next().unwrap_or_default().chars().count();
    format!("line {line}, column {column}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touches(source: &str) -> Touches {
        Program::compile("t", source).unwrap().0.touches
    }

    #[test]
    fn a_program_touches_the_members_that_it_names() {
        let keys = |keys: &[&str]| Touches::Keys(keys.iter().map(|key| (*key).to_owned()).collect());
        assert_eq!(touches(".a = 1"), keys(&["a"]));
        assert_eq!(touches(".b.c = del(.a.x[1])"), keys(&["a", "b"]));
        assert_eq!(touches("if exists(.a) { abort }"), keys(&["a"]));
        assert_eq!(touches(".\"a b\" = {\"c\": %received_at}"), keys(&["a b"]));
        assert_eq!(
            touches("x, err = to_int(.a)\n.b = x\n.c = err"),
            keys(&["a", "b", "c"])
        );
        for whole in [
            ". = {\"a\": .b}",
            ".a = encode_json(.)",
            ".a = get!(., [.b])",
            "for_each(.) -> |_, _| { .n = 1 }",
            "x = .\n.a = x.b",
        ] {
            assert_eq!(touches(whole), Touches::All, "{whole}");
        }
    }

    #[test]
    fn errors_name_lines() {
        let source = ".a = 1\n  .b = to_int!(parse_json!(.c))";
        let error = ExpressionError::from(
            "function call error for \"to_int\" at (13:37): function call error for \"parse_json\" at (21:36): no",
        );
        assert_eq!(
            reason(source, &error),
            "to_int at line 2, column 7: parse_json at line 2, column 15: no"
        );
        let other = ExpressionError::from("can't divide by zero");
        assert_eq!(reason(source, &other), "can't divide by zero");
    }
}
