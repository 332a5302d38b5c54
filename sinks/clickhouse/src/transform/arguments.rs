//! Arguments that a program must state itself, and calls for which an event may not be large. A variable is not enough where the compiler
//! believes that it knows its value: a closure may have changed it.

use super::functions::Refusal;
use super::walk::Walk;
use std::collections::HashMap;
use vrl::parser::Literal;
use vrl::parser::ast::{Container, Expr, FunctionArgument};

/// A function, its argument by name and by place, and why it must be a literal.
const LITERAL: &[(&str, &str, usize, &str)] = &[
    ("format_timestamp", "timezone", 2, ZONE),
    ("parse_timestamp", "timezone", 2, ZONE),
    ("parse_cef", "translate_custom_fields", 1, VALUE),
    ("shannon_entropy", "segmentation", 1, VALUE),
    ("format_number", "scale", 1, LENGTH),
];
const ZONE: &str = "the name of a zone as a literal";
const VALUE: &str = "a literal";
const LENGTH: &str = "a number below 100, because an event could otherwise ask for any length";

/// A function and an argument that repeats: with the event's own text in it, the result is up to the square of the event.
const REPEATED: &[(&str, &str, usize)] = &[
    ("join", "separator", 1),
    ("replace", "with", 2),
    ("sieve", "replace_single", 2),
    ("sieve", "replace_multiple", 3),
];

/// Functions that may take the square of an event's length, in memory or in time.
const SQUARE: &[&str] = &[
    "decode_punycode",
    "encode_key_value",
    "encode_logfmt",
    "encode_punycode",
    "flatten",
    "parse_grok",
    "parse_key_value",
    "parse_logfmt",
    "parse_regex_all",
    "replace_with",
];

/// The calls whose arguments the program does not state.
pub(super) fn refused(walk: &Walk) -> Vec<Refusal> {
    let mut refused = Vec::new();
    for (label, function, arguments) in &walk.calls {
        let literals = LITERAL.iter().filter(|(of, ..)| of == function);
        let stated = literals.filter_map(|(_, name, place, what)| {
            let given = argument(arguments, name, *place)?;
            let is_stated = is_literal(given) && (*name != "scale" || is_below_100(given));
            (!is_stated).then(|| format!("the argument {name} of {function} must be {what}"))
        });
        let path =
            argument(arguments, "path", 1).filter(|path| function == "set" && !is_path(path, &walk.values));
        let path = path.map(|_| {
            "the path of set must be an array of literals and of string!(…): a number from an event could need any amount of memory"
                .to_owned()
        });
        refused.extend(stated.chain(path).map(|message| Refusal {
            message,
            label: label.clone(),
        }));
    }
    refused
}

/// Returns true if the program may take the square of an event's length.
pub(super) fn takes_the_square(walk: &Walk) -> bool {
    walk.calls.iter().any(|(_, function, arguments)| {
        let repeated = REPEATED.iter().filter(|(of, ..)| of == function);
        let mut given = repeated.filter_map(|(_, name, place)| argument(arguments, name, *place));
        SQUARE.contains(&function.as_str()) || given.any(|given| !is_literal(given))
    })
}

/// An argument that a call gives. VRL takes those without a name in the order of the parameters that no name takes, so each that may be
/// the wanted one counts.
fn argument<'a>(arguments: &'a [FunctionArgument], name: &str, place: usize) -> Option<&'a Expr> {
    let named = arguments.iter().find(|argument| {
        let ident = argument.ident.as_ref();
        ident.is_some_and(|ident| ident.inner().clone().into_inner() == name)
    });
    let others = arguments.iter().filter(|argument| argument.ident.is_none());
    // Named arguments before it leave fewer without a name.
    let named_before = arguments.len() - others.clone().count();
    let nth = |place: usize| others.clone().nth(place);
    let found = named.or_else(|| (place.saturating_sub(named_before)..=place).find_map(nth));
    found.map(|argument| argument.expr.inner())
}

fn is_literal(expression: &Expr) -> bool {
    match expression {
        Expr::Literal(literal) => match literal.inner() {
            // Variables may stand in it.
            Literal::String(text) => !text.to_string().contains("{{"),
            _ => true,
        },
        Expr::Container(container) => match container.inner() {
            Container::Group(group) => is_literal(group.inner().0.inner()),
            _ => false,
        },
        _ => false,
    }
}

fn is_below_100(expression: &Expr) -> bool {
    match expression {
        Expr::Literal(literal) => matches!(literal.inner(), Literal::Integer(0..100)),
        _ => false,
    }
}

/// Each segment is a literal, or certainly a string.
fn is_path(path: &Expr, values: &HashMap<String, Vec<Option<Expr>>>) -> bool {
    let Expr::Container(container) = path else {
        return false;
    };
    let Container::Array(segments) = container.inner() else {
        return false;
    };
    segments
        .inner()
        .clone()
        .into_iter()
        .all(|segment| match segment.inner() {
            Expr::Variable(name) => {
                let given = values.get(&name.inner().clone().into_inner());
                // The compiler knows the type of a closure's parameter, unless the program assigns to it.
                given.is_some_and(|given| {
                    given.iter().all(Option::is_none)
                        || given.iter().all(|value| value.as_ref().is_some_and(is_text))
                })
            }
            segment => is_literal(segment) || is_text(segment),
        })
}

fn is_text(expression: &Expr) -> bool {
    match expression {
        Expr::Literal(literal) => matches!(literal.inner(), Literal::String(_) | Literal::RawString(_)),
        Expr::FunctionCall(call) => {
            let name = call.ident.inner().clone().into_inner();
            ["downcase", "string", "to_string", "upcase"].contains(&name.as_str())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(source: &str) -> Walk {
        Walk::over(source).unwrap()
    }

    #[test]
    fn what_a_closure_may_have_changed_is_no_literal() {
        for (source, is_allowed) in [
            (".a = format_timestamp!(.t, \"%F\", \"UTC\")", true),
            (
                ".a = format_timestamp!(.t, timezone: \"UTC\", format: \"%F\")",
                true,
            ),
            (".a = format_timestamp!(.t, timezone: \"UTC\", \"%F\")", true),
            (".a = format_timestamp!(.t, \"%F\", \"{{ z }}\")", false),
            (
                "z = \"UTC\"; for_each([1]) -> |_, _| { z = \"local\" }; .a = format_timestamp!(.t, \"%F\", timezone: z)",
                false,
            ),
            ("z = \"UTC\"; .a = parse_timestamp!(.t, \"%F\", z)", false),
            (
                "t = false; .a = parse_cef!(.m, translate_custom_fields: t)",
                false,
            ),
            (
                "s = \"byte\"; .a = shannon_entropy(string!(.m), segmentation: s)",
                false,
            ),
            (".a = format_number(int!(.a), 2)", true),
            (".a = format_number(int!(.a), scale: int!(.s))", false),
            (".a = format_number(int!(.a), scale: 5000000000)", false),
            (". = set!(., [\"a\", 1, string!(.k)], 1)", true),
            ("for_each(object!(.o)) -> |k, v| { . = set!(., [k], v) }", true),
            (
                "i = 1; for_each([.i]) -> |_, z| { i = int!(z) }; . = set!(., [\"a\", i], 1)",
                false,
            ),
            (
                "for_each(object!(.o)) -> |k, v| { k = int!(v); . = set!(., [k], v) }",
                false,
            ),
            ("p = [\"a\"]; . = set!(., p, 1)", false),
        ] {
            let refused = refused(&walk(source));
            assert_eq!(refused.is_empty(), is_allowed, "{source}: {refused:?}");
        }
    }

    #[test]
    fn calls_that_take_the_square_are_known() {
        for (source, expected) in [
            (".a = flatten(object!(.a))", true),
            (".a = join!(.l, \", \")", false),
            (".a = join!(.l, .s)", true),
            (".a = join!(.l, separator: .s)", true),
            (".a = replace!(.a, \"x\", \"y\")", false),
            (".a = replace!(.a, with: .b, pattern: \"x\")", true),
            (".a = replace!(with: .b, .a, \"x\")", true),
            (".a = {\"b\": [encode_logfmt!(.c)]}", true),
        ] {
            assert_eq!(takes_the_square(&walk(source)), expected, "{source}");
        }
    }
}
