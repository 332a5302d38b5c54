//! One request on one session: the body is decoded, the statement routed, run, and its result encoded. An INSERT
//! starts only when its whole body is here and decoded, so a client that dies in mid-body inserts nothing.

use bytes::Bytes;

use crate::encoding;
use crate::engine::{Job, Limits};
use crate::exception::{Code, Exception};
use crate::ffi::{Connection, Counters};
use crate::formats::{self, Join};
use crate::frames;
use crate::hello::{self, Server};
use crate::output::Output;
use crate::request::Request;
use crate::sql::{self, Query, Statement};

/// How much of an INSERT's data is handed to the engine at a time (it copies each piece).
const INSERT_PIECE_BYTES: usize = 4 << 20;

/// Runs a job and answers it.
pub(crate) fn run(session: &mut Connection, job: Job, server: &Server, limits: Limits) {
    let Job {
        request,
        body_memory,
        exception_tag,
        reply,
    } = job;
    let mut output = Output::new(reply);
    let answered = answer(session, request, server, limits, &mut output);
    drop(body_memory);
    match answered {
        Ok(()) => output.finish(),
        Err(exception) => output.fail(exception, &exception_tag, &server.version),
    }
}

fn answer(
    session: &mut Connection,
    mut request: Request,
    server: &Server,
    limits: Limits,
    output: &mut Output,
) -> Result<(), Exception> {
    let limit = limits.body_bytes_max;
    let mut body = encoding::decode(
        std::mem::take(&mut request.body),
        &request.content_encoding,
        limit,
    )?;
    if request.decompress {
        body = frames::decode(&body, limit)?.into();
    }
    output.compress(request.response_encoding)?;
    if request.wait_end_of_query {
        output.buffer_bytes_max = limit;
    }
    let text = Bytes::from(std::mem::take(&mut request.query).into_bytes());
    let (text, body) = if text.trim_ascii().is_empty() {
        (body, Bytes::new())
    } else {
        (text, body)
    };
    if let Some(block) = hello::answer(&request, &text, server) {
        output.format = Some("Native".to_owned());
        return output.push_whole(block.into());
    }
    for statement in request.preparation()? {
        session.query(statement.as_bytes(), "Null", &[])?;
    }
    match sql::parse(&text) {
        Statement::Insert { head, format, data } => {
            let format = format
                .or(request.default_format.as_deref())
                .unwrap_or("Values")
                .to_owned();
            // ClickHouse reads the parameter and the body as one text, with a line end between.
            let separator: &[u8] = if data.is_empty() || body.is_empty() {
                b""
            } else {
                b"\n"
            };
            output.counters = insert(
                session,
                &head,
                &format,
                &request.params,
                &[data, separator, &body],
            )?;
            Ok(())
        }
        Statement::Query(query) => {
            let format = query
                .format
                .or(request.default_format.as_deref())
                .unwrap_or("TabSeparated")
                .to_owned();
            let join = join(&query, &format, &request);
            if query.several {
                return Err(Exception::new(
                    Code::SyntaxError,
                    "syntax error (multi-statements are not allowed)",
                ));
            }
            let text = match body.is_empty() {
                true => text,
                false => [&text[..], b"\n", &body[..]].concat().into(),
            };
            output.format = Some(format.clone());
            select(session, &text, &format, join, &request.params, output)
        }
    }
}

/// How a query's result can be streamed, if it can.
fn join(query: &Query<'_>, format: &str, request: &Request) -> Option<Join> {
    let changes_the_form = |name: &str| matches!(name, "extremes" | "output_format_json_array_of_rows");
    let whole = query.whole || request.settings.iter().any(|(name, _)| changes_the_form(name));
    if query.reads && !whole {
        formats::join(format)
    } else {
        None
    }
}

fn insert(
    session: &mut Connection,
    head: &[u8],
    format: &str,
    params: &[(String, String)],
    data: &[&[u8]],
) -> Result<Counters, Exception> {
    let mut insert = session.insert(head, format, params)?;
    let pieces = data.iter().flat_map(|part| part.chunks(INSERT_PIECE_BYTES));
    for piece in pieces {
        if !insert.append(piece) {
            break; // `finish` says why.
        }
    }
    insert.finish()
}

fn select(
    session: &mut Connection,
    sql: &[u8],
    format: &str,
    join: Option<Join>,
    params: &[(String, String)],
    output: &mut Output,
) -> Result<(), Exception> {
    let Some(join) = join else {
        let (result, counters) = session.query(sql, format, params)?;
        output.counters = counters;
        return output.push_whole(result);
    };
    let mut rows = session.stream(sql, format, params)?;
    let mut header: Option<Bytes> = None;
    while let Some((mut piece, counters)) = rows.next()? {
        output.counters += counters;
        match &header {
            None => {
                let length = join.header_length(&piece).ok_or_else(|| unlike(format))?;
                header = Some(piece.slice(..length));
            }
            Some(header) if piece.starts_with(header) => piece = piece.slice(header.len()..),
            Some(_) => return Err(unlike(format)),
        }
        output.push(piece)?;
    }
    Ok(())
}

fn unlike(format: &str) -> Exception {
    let message = format!("the engine's {format} does not look as expected, so its pieces cannot be joined");
    Exception::new(Code::Unknown, message)
}
