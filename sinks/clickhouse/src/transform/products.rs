//! Refuses products of which a factor may be a string. VRL repeats a string as often as a number says, so that one event could need any
//! amount of memory: `.price * .count`, of which a sender makes a string and a large number.

use super::functions::Refusal;
use std::collections::HashMap;
use vrl::diagnostic::{DiagnosticList, DiagnosticMessage, Label};
use vrl::parser::ast::{
    Assignment, AssignmentTarget, Block, Container, Expr, FunctionCall, IfStatement, Node, Opcode, Predicate,
    Query, QueryTarget, RootExpr, Unary,
};
use vrl::parser::{Literal, parse};

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

/// Checks a program that compiles.
pub(super) fn check(source: &str) -> Result<(), DiagnosticList> {
    let program = parse(source).map_err(|error| list(vec![Box::new(error)]))?;
    let mut walk = Walk::default();
    for root in program.0 {
        if let RootExpr::Expr(expression) = root.into_inner() {
            walk.expression(expression);
        }
    }
    let Walk { values, products } = walk;
    let refused = products.into_iter().filter(|(_, factors)| {
        let is_float = |factor| kind(factor, &values, 0) == Kind::Float;
        let is_number = |factor| kind(factor, &values, 0) != Kind::Other;
        !factors.iter().any(is_float) && !factors.iter().all(is_number)
    });
    let refused = refused.map(|(label, _)| {
        Box::new(Refusal {
            message: "a factor may be a string, which VRL would repeat up to any length: convert both with int or float, or with to_int or \
                      to_float"
                .to_owned(),
            label,
        }) as Box<dyn DiagnosticMessage>
    });
    let refused: Vec<_> = refused.collect();
    if refused.is_empty() {
        Ok(())
    } else {
        Err(list(refused))
    }
}

fn list(messages: Vec<Box<dyn DiagnosticMessage>>) -> DiagnosticList {
    messages.into()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Float,
    Number,
    /// It may be anything.
    Other,
}

/// The products of a program, and the values of its variables.
#[derive(Default)]
struct Walk {
    /// `None`: no expression gives the value, as for a parameter of a closure.
    values: HashMap<String, Vec<Option<Expr>>>,
    products: Vec<(Label, [Expr; 2])>,
}

impl Walk {
    fn expression(&mut self, expression: Node<Expr>) {
        let span = expression.span();
        match expression.into_inner() {
            Expr::Literal(_) | Expr::Variable(_) => {}
            Expr::Container(container) => self.container(container.into_inner()),
            Expr::IfStatement(statement) => {
                let IfStatement {
                    predicate,
                    if_node,
                    else_node,
                } = statement.into_inner();
                match predicate.into_inner() {
                    Predicate::One(expression) => self.expression(*expression),
                    Predicate::Many(expressions) => self.expressions(expressions),
                }
                self.block(if_node);
                else_node.into_iter().for_each(|block| self.block(block));
            }
            Expr::Op(op) => {
                let op = op.into_inner();
                if *op.1.inner() == Opcode::Mul {
                    let factors = [op.0.inner().clone(), op.2.inner().clone()];
                    self.products
                        .push((Label::primary("this product", span), factors));
                }
                self.expression(*op.0);
                self.expression(*op.2);
            }
            Expr::Assignment(assignment) => match assignment.into_inner() {
                Assignment::Single { target, expr, .. } => {
                    self.value(target.inner(), Some(expr.inner()));
                    self.expression(*expr);
                }
                Assignment::Infallible { ok, err, expr, .. } => {
                    self.value(ok.inner(), Some(expr.inner()));
                    self.value(err.inner(), None);
                    self.expression(*expr);
                }
            },
            Expr::Query(query) => self.query(query.into_inner()),
            Expr::FunctionCall(call) => self.call(call.into_inner()),
            Expr::Unary(unary) => {
                let Unary::Not(not) = unary.into_inner();
                self.expression(*not.into_inner().take().1);
            }
            Expr::Abort(abort) => {
                let message = abort.into_inner().message;
                message.into_iter().for_each(|message| self.expression(*message));
            }
            Expr::Return(value) => self.expression(*value.into_inner().expr),
        }
    }

    fn expressions(&mut self, expressions: impl IntoIterator<Item = Node<Expr>>) {
        expressions
            .into_iter()
            .for_each(|expression| self.expression(expression));
    }

    fn block(&mut self, block: Node<Block>) {
        self.expressions(block.into_inner().into_inner());
    }

    fn container(&mut self, container: Container) {
        match container {
            Container::Group(group) => self.expression(group.into_inner().into_inner()),
            Container::Block(block) => self.block(block),
            Container::Array(array) => self.expressions(array.into_inner()),
            Container::Object(object) => {
                self.expressions(object.into_inner().into_iter().map(|(_, value)| value));
            }
        }
    }

    fn query(&mut self, query: Query) {
        match query.target.into_inner() {
            QueryTarget::Internal(_) | QueryTarget::External(_) => {}
            QueryTarget::FunctionCall(call) => self.call(call),
            QueryTarget::Container(container) => self.container(container),
        }
    }

    fn call(&mut self, call: FunctionCall) {
        self.expressions(
            call.arguments
                .into_iter()
                .map(|argument| argument.into_inner().expr),
        );
        if let Some(closure) = call.closure {
            let closure = closure.into_inner();
            for variable in closure.variables {
                let values = self.values.entry(variable.into_inner().into_inner());
                values.or_default().push(None);
            }
            self.block(closure.block);
        }
    }

    fn value(&mut self, target: &AssignmentTarget, value: Option<&Expr>) {
        if let AssignmentTarget::Internal(name, path) = target {
            let value = value.filter(|_| path.is_none()).cloned();
            self.values
                .entry(name.clone().into_inner())
                .or_default()
                .push(value);
        }
    }
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
            let checked = check(source);
            assert_eq!(checked.is_ok(), is_allowed, "{source}");
        }
    }
}
