//! Walks over the syntax of a program. Its types do not tell enough: VRL forgets what a closure assigns.

use std::collections::HashMap;
use vrl::diagnostic::{DiagnosticList, DiagnosticMessage, Label};
use vrl::parser::ast::{
    Assignment, AssignmentTarget, Block, Container, Expr, FunctionArgument, FunctionCall, IfStatement, Node,
    Opcode, Predicate, Query, QueryTarget, RootExpr, Unary,
};
use vrl::parser::parse;

/// The products and calls of a program, and the values of its variables.
#[derive(Default)]
pub(super) struct Walk {
    /// `None`: no expression gives the value, as for a parameter of a closure.
    pub(super) values: HashMap<String, Vec<Option<Expr>>>,
    pub(super) products: Vec<(Label, [Expr; 2])>,
    /// The calls, by the function's name.
    pub(super) calls: Vec<(Label, String, Vec<FunctionArgument>)>,
}

impl Walk {
    /// Walks over a program.
    pub(super) fn over(source: &str) -> Result<Walk, DiagnosticList> {
        let program = parse(source).map_err(|error| {
            let messages: Vec<Box<dyn DiagnosticMessage>> = vec![Box::new(error)];
            DiagnosticList::from(messages)
        })?;
        let mut walk = Walk::default();
        for root in program.0 {
            if let RootExpr::Expr(expression) = root.into_inner() {
                walk.expression(expression);
            }
        }
        Ok(walk)
    }

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
        let label = Label::primary("this call", call.ident.span());
        let arguments = call.arguments.iter().map(|argument| argument.inner().clone());
        let name = call.ident.inner().clone().into_inner();
        self.calls.push((label, name, arguments.collect()));
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
