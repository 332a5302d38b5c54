//! Refuses products of which a factor may be a string. VRL repeats a string as often as a number says, so that one event could need any
//! amount of memory: `.price * .count`, of which a sender makes a string and a large number.

use super::functions::Refusal;
use super::walk::Walk;
use std::collections::HashMap;
use vrl::parser::Literal;
use vrl::parser::ast::{Container, Expr, Opcode};

/// Functions whose result is a double.
const FLOATS: &[&str] = &[
    "float",
    "haversine",
    "parse_bytes",
    "parse_duration",
    "parse_float",
    "to_float",
];

/// Functions whose result is an integer or a double.
const NUMBERS: &[&str] = &[
    "abs",
    "ceil",
    "floor",
    "int",
    "length",
    "mod",
    "parse_int",
    "round",
    "seahash",
    "strlen",
    "to_int",
    "to_unix_timestamp",
];

/// The products of which a factor may be a string.
pub(super) fn refused(walk: &Walk) -> Vec<Refusal> {
    let Walk { values, products, .. } = walk;
    let refused = products.iter().filter(|(_, factors)| {
        let is_float = |factor| kind(factor, values, 0) == Kind::Float;
        let is_number = |factor| kind(factor, values, 0) != Kind::Other;
        !factors.iter().any(is_float) && !factors.iter().all(is_number)
    });
    let refused = refused.map(|(label, _)| Refusal {
        message: "a factor may be a string, which VRL would repeat up to any length: convert both with int or float, or with to_int or to_float"
            .to_owned(),
        label: label.clone(),
    });
    refused.collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Float,
    Number,
    /// It may be anything.
    Other,
}

/// Variables within the values of variables: a program that goes deeper has a factor that may be anything.
const DEPTH_MAX: usize = 32;

fn kind(expression: &Expr, values: &HashMap<String, Vec<Option<Expr>>>, depth: usize) -> Kind {
    let kind_of = |expression: &Expr| kind(expression, values, depth + 1);
    let both = |one: Kind, other: Kind| match (one, other) {
        (Kind::Other, _) | (_, Kind::Other) => Kind::Other,
        (Kind::Float, Kind::Float) => Kind::Float,
        _ => Kind::Number,
    };
    if depth > DEPTH_MAX {
        return Kind::Other;
    }
    match expression {
        Expr::Literal(literal) => match literal.inner() {
            Literal::Float(_) => Kind::Float,
            Literal::Integer(_) => Kind::Number,
            _ => Kind::Other,
        },
        Expr::Container(container) => match container.inner() {
            Container::Group(group) => kind_of(group.inner().0.inner()),
            _ => Kind::Other,
        },
        Expr::Op(op) => match op.1.inner() {
            Opcode::Div => Kind::Float,
            Opcode::Sub => Kind::Number,
            Opcode::Add | Opcode::Mul | Opcode::Err => both(kind_of(op.0.inner()), kind_of(op.2.inner())),
            _ => Kind::Other,
        },
        Expr::FunctionCall(call) => match call.ident.inner().clone().into_inner() {
            name if FLOATS.contains(&name.as_str()) => Kind::Float,
            name if NUMBERS.contains(&name.as_str()) => Kind::Number,
            _ => Kind::Other,
        },
        Expr::Variable(name) => {
            let given = values.get(&name.inner().clone().into_inner());
            let kinds = given.into_iter().flatten();
            let kinds = kinds.map(|value| value.as_ref().map_or(Kind::Other, kind_of));
            kinds.reduce(both).unwrap_or(Kind::Other)
        }
        _ => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_what_may_be_a_string_are_refused() {
        for (source, is_allowed) in [
            (".a = 2 * 3", true),
            (".a = int!(.b) * 3", true),
            (".a = (to_int!(.b) + 1) * length!(.c)", true),
            (".a = (to_int(.b) ?? 0) * 3", true),
            (".a = .b * 1.5 ?? 0", true),
            (".a = (.b / 2 ?? 0.0) * 3", true),
            ("x = int!(.b); y = x + 1; .a = x * y", true),
            ("x, err = to_int(.b); .a = x * 2", true),
            (".a = .b * .c ?? 0", false),
            (".a = .b * 3 ?? 0", false),
            (".a = string!(.b) * 3", false),
            (".a = \"x\" * int!(.b)", false),
            ("x = int!(.b); x = string!(.b); .a = x * 3", false),
            ("x = {}; x.y = 3; .a = x * 3 ?? 0", false),
            ("for_each(array!(.b)) -> |_, x| { .a = x * 3 ?? 0 }", false),
            (".a = [{\"b\": [.b * 3 ?? 0]}]", false),
            ("if (.b * 3 ?? 0) == 9 { abort }", false),
            ("if true { if false { .x = 1 } else { .a = .b * 3 ?? 0 } }", false),
            (".a = to_string(.b * 3 ?? 0)", false),
            (".a = !(.b * 3 ?? 0 == 9)", false),
            (".a = encode_json({\"x\": .b * 3 ?? 0})", false),
            ("abort to_string(.b * 3 ?? 0)", false),
            ("x, err = .b * 3", false),
            (".a = ({ 1; .b * 3 ?? 0 })", false),
        ] {
            let refused = refused(&Walk::over(source).unwrap());
            assert_eq!(refused.is_empty(), is_allowed, "{source}");
        }
    }
}
