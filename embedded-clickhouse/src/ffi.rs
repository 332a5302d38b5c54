//! The calls into libchdb, the one place of this program with `unsafe`: a C library that is loaded at run
//! time cannot be called otherwise. Everything above sees owned values and `Result`s. It never keeps a
//! pointer of the engine beyond the object that owns it, and never shares a connection between threads.
//!
//! Why it is sound:
//! - The declarations are those of `chdb.h` 26.7 (all pointers and lengths, no struct passed by value); the
//!   library's version is pinned by `scripts/install-libchdb.sh`, and a missing symbol is an error at start.
//! - The library is never unloaded ([`Api::load`] leaks it): its threads run until the process ends.
//! - [`Connection`], [`Rows`] and [`Insert`] hold raw pointers, so they are neither `Send` nor `Sync`; `Rows`
//!   and `Insert` borrow their connection mutably, so one statement runs on it at a time (the engine's
//!   rule) and it cannot be closed under them. Each frees its handle exactly once, in `Drop`.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::path::Path;
use std::ptr;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;

use crate::exception::Exception;

/// What `chdb_connect` returns: a pointer to the handle that all other calls take.
type ConnectionHandle = *mut *mut c_void;
type ResultHandle = *mut c_void;
type InsertHandle = *mut c_void;

macro_rules! api {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of a loaded libchdb.
        pub(crate) struct Api {
            $($field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            fn resolve(library: &libloading::Library) -> Result<Api> {
                // SAFETY: each symbol has the type that chdb.h declares for it.
                Ok(Api { $($field: *unsafe { library.get($symbol) }
                    .context("this libchdb is not the version that Millpond needs")?,)* })
            }
        }
    };
}

api! {
    version = b"chdb_version": fn() -> *const c_char;
    set_signal_handlers_enabled = b"chdb_set_signal_handlers_enabled": fn(c_int);
    connect = b"chdb_connect": fn(c_int, *mut *mut c_char) -> ConnectionHandle;
    close = b"chdb_close_conn": fn(ConnectionHandle);
    query = b"chdb_query_with_params_n": fn(*mut c_void, *const c_char, usize, *const c_char, usize,
        *const *const c_char, *const usize, *const *const c_char, *const usize, usize) -> ResultHandle;
    stream_query = b"chdb_stream_query_with_params_n": fn(*mut c_void, *const c_char, usize, *const c_char, usize,
        *const *const c_char, *const usize, *const *const c_char, *const usize, usize) -> ResultHandle;
    stream_fetch = b"chdb_stream_fetch_result": fn(*mut c_void, ResultHandle) -> ResultHandle;
    stream_cancel = b"chdb_stream_cancel_query": fn(*mut c_void, ResultHandle);
    insert = b"chdb_stream_insert_with_params_n": fn(*mut c_void, *const c_char, usize, *const c_char, usize,
        *const *const c_char, *const usize, *const *const c_char, *const usize, usize) -> InsertHandle;
    insert_append = b"chdb_stream_append": fn(InsertHandle, *const c_void, usize) -> c_int;
    insert_done = b"chdb_stream_done": fn(InsertHandle) -> ResultHandle;
    insert_error = b"chdb_stream_insert_error": fn(InsertHandle) -> *const c_char;
    insert_destroy = b"chdb_destroy_insert_stream": fn(InsertHandle);
    result_buffer = b"chdb_result_buffer": fn(ResultHandle) -> *const u8;
    result_length = b"chdb_result_length": fn(ResultHandle) -> usize;
    result_error = b"chdb_result_error": fn(ResultHandle) -> *const c_char;
    result_read_rows = b"chdb_result_storage_rows_read": fn(ResultHandle) -> u64;
    result_read_bytes = b"chdb_result_storage_bytes_read": fn(ResultHandle) -> u64;
    result_written_rows = b"chdb_result_rows_written": fn(ResultHandle) -> u64;
    result_written_bytes = b"chdb_result_bytes_written": fn(ResultHandle) -> u64;
    result_rows = b"chdb_result_rows_read": fn(ResultHandle) -> u64;
    result_destroy = b"chdb_destroy_query_result": fn(ResultHandle);
}

impl Api {
    /// Loads libchdb for the life of the process and keeps its hands off the process's signals.
    pub(crate) fn load(file: &Path) -> Result<&'static Api> {
        // SAFETY: loading runs the library's initialisers; the file is one that the user named or that
        // the install script verified.
        let library = unsafe { libloading::Library::new(file) }
            .with_context(|| format!("cannot load {}", file.display()))?;
        let api: &'static Api = Box::leak(Box::new(Api::resolve(Box::leak(Box::new(library)))?));
        // SAFETY: takes a flag; called before the first connection, as chdb.h asks. Without it the engine
        // would take over the handlers that the shutdown needs.
        unsafe { (api.set_signal_handlers_enabled)(0) };
        Ok(api)
    }

    /// chDB's own version, such as `26.7.3`.
    pub(crate) fn version(&self) -> String {
        // SAFETY: returns a static string.
        string(unsafe { (self.version)() }).unwrap_or_default()
    }
}

/// Rows and bytes that a statement has read and written so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) read_rows: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_rows: u64,
    pub(crate) written_bytes: u64,
    pub(crate) result_rows: u64,
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        let Counters {
            read_rows,
            read_bytes,
            written_rows,
            written_bytes,
            result_rows,
        } = other;
        self.read_rows += read_rows;
        self.read_bytes += read_bytes;
        self.written_rows += written_rows;
        self.written_bytes += written_bytes;
        self.result_rows += result_rows;
    }
}

/// Named parameters (`{name:Type}` in the SQL) in the shape that the C functions take.
#[derive(Default)]
struct RawParams {
    names: Vec<*const c_char>,
    name_lengths: Vec<usize>,
    values: Vec<*const c_char>,
    value_lengths: Vec<usize>,
}

impl RawParams {
    /// The pointers are into `params`, which the caller keeps alive during the call.
    fn new(params: &[(String, String)]) -> RawParams {
        let mut raw = RawParams::default();
        for (name, value) in params {
            raw.names.push(name.as_ptr().cast());
            raw.name_lengths.push(name.len());
            raw.values.push(value.as_ptr().cast());
            raw.value_lengths.push(value.len());
        }
        raw
    }
}

/// A session of the engine: its own settings, current database and temporary tables. Used by one thread.
pub(crate) struct Connection {
    api: &'static Api,
    handle: ConnectionHandle,
}

impl Connection {
    /// Opens a session on the data in `path`; the first one of the process starts the engine. The engine
    /// says why it cannot on stderr only.
    pub(crate) fn open(api: &'static Api, path: &str) -> Result<Connection> {
        let arguments = [
            CString::new("embedded-clickhouse")?,
            CString::new(format!("--path={path}"))?,
        ];
        let mut pointers: Vec<*mut c_char> = arguments.iter().map(|one| one.as_ptr().cast_mut()).collect();
        let count = c_int::try_from(pointers.len())?;
        // SAFETY: argc and argv as for main(); the engine copies the strings and does not write to them.
        let handle = unsafe { (api.connect)(count, pointers.as_mut_ptr()) };
        if handle.is_null() {
            bail!("chDB cannot open {path}: it said why above; one process at a time can use a data folder");
        }
        Ok(Connection { api, handle })
    }

    fn raw(&self) -> *mut c_void {
        // SAFETY: `handle` is non-null and points to the connection until `close`, which only `Drop` calls.
        unsafe { *self.handle }
    }

    /// Runs a statement to its end and returns the whole result. Never for an INSERT with data.
    pub(crate) fn query(
        &mut self,
        sql: &[u8],
        format: &str,
        params: &[(String, String)],
    ) -> Result<(Bytes, Counters), Exception> {
        let raw = RawParams::new(params);
        // SAFETY: every pointer comes with its length and outlives the call.
        let handle = unsafe {
            (self.api.query)(
                self.raw(),
                sql.as_ptr().cast(),
                sql.len(),
                format.as_ptr().cast(),
                format.len(),
                raw.names.as_ptr(),
                raw.name_lengths.as_ptr(),
                raw.values.as_ptr(),
                raw.value_lengths.as_ptr(),
                params.len(),
            )
        };
        OwnedResult {
            api: self.api,
            handle,
        }
        .take()
    }

    /// Starts a SELECT whose result comes in pieces, each formatted as if it were a whole result.
    pub(crate) fn stream(
        &mut self,
        sql: &[u8],
        format: &str,
        params: &[(String, String)],
    ) -> Result<Rows<'_>, Exception> {
        let raw = RawParams::new(params);
        // SAFETY: as in `query`.
        let handle = unsafe {
            (self.api.stream_query)(
                self.raw(),
                sql.as_ptr().cast(),
                sql.len(),
                format.as_ptr().cast(),
                format.len(),
                raw.names.as_ptr(),
                raw.name_lengths.as_ptr(),
                raw.values.as_ptr(),
                raw.value_lengths.as_ptr(),
                params.len(),
            )
        };
        let result = OwnedResult {
            api: self.api,
            handle,
        };
        result.error()?;
        Ok(Rows {
            connection: self,
            result,
            ended: false,
        })
    }

    /// Starts an INSERT; `sql` is without its FORMAT clause.
    pub(crate) fn insert(
        &mut self,
        sql: &[u8],
        format: &str,
        params: &[(String, String)],
    ) -> Result<Insert<'_>, Exception> {
        let raw = RawParams::new(params);
        // SAFETY: as in `query`.
        let handle = unsafe {
            (self.api.insert)(
                self.raw(),
                sql.as_ptr().cast(),
                sql.len(),
                format.as_ptr().cast(),
                format.len(),
                raw.names.as_ptr(),
                raw.name_lengths.as_ptr(),
                raw.values.as_ptr(),
                raw.value_lengths.as_ptr(),
                params.len(),
            )
        };
        let insert = Insert {
            api: self.api,
            handle,
            connection: PhantomData,
        };
        insert.error()?;
        Ok(insert)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: opened by `chdb_connect`, closed once, and nothing that borrows it is left.
        unsafe { (self.api.close)(self.handle) };
    }
}

/// The result of a SELECT in pieces. Dropped early, the query is cancelled.
pub(crate) struct Rows<'a> {
    connection: &'a mut Connection,
    result: OwnedResult,
    ended: bool,
}

impl Rows<'_> {
    /// The next piece and what reading it cost; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(Bytes, Counters)>, Exception> {
        let api = self.connection.api;
        // SAFETY: both handles live; only this thread uses them.
        let handle = unsafe { (api.stream_fetch)(self.connection.raw(), self.result.handle) };
        let piece = OwnedResult { api, handle }.take();
        self.ended = !matches!(&piece, Ok((bytes, _)) if !bytes.is_empty());
        piece.map(|(bytes, counters)| (!bytes.is_empty()).then_some((bytes, counters)))
    }
}

impl Drop for Rows<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // SAFETY: both handles live; the result is freed after this, by its own `Drop`.
            unsafe { (self.connection.api.stream_cancel)(self.connection.raw(), self.result.handle) };
        }
    }
}

/// An INSERT that takes its data in pieces. Dropped without [`Insert::finish`], it is cancelled.
pub(crate) struct Insert<'a> {
    api: &'static Api,
    handle: InsertHandle,
    connection: PhantomData<&'a mut Connection>,
}

impl Insert<'_> {
    fn error(&self) -> Result<(), Exception> {
        // SAFETY: the handle is never null (chdb.h) and lives; the string is copied.
        match string(unsafe { (self.api.insert_error)(self.handle) }) {
            Some(message) => Err(Exception::from_engine(message)),
            None => Ok(()),
        }
    }

    /// Gives the engine the next piece; waits while it is behind. After an error only `finish` is left,
    /// which says what it was.
    pub(crate) fn append(&mut self, data: &[u8]) -> bool {
        // SAFETY: the engine copies `data` before it returns.
        unsafe { (self.api.insert_append)(self.handle, data.as_ptr().cast(), data.len()) == 0 }
    }

    /// Ends the data and waits until the rows are in the table.
    pub(crate) fn finish(self) -> Result<Counters, Exception> {
        // SAFETY: called once, as it consumes self; the stream itself is freed by `Drop`.
        let handle = unsafe { (self.api.insert_done)(self.handle) };
        OwnedResult {
            api: self.api,
            handle,
        }
        .take()
        .map(|(_, counters)| counters)
    }
}

impl Drop for Insert<'_> {
    fn drop(&mut self) {
        // SAFETY: required once for every handle (chdb.h); cancels what is not finished.
        unsafe { (self.api.insert_destroy)(self.handle) };
    }
}

/// A result handle, freed with its scope.
struct OwnedResult {
    api: &'static Api,
    handle: ResultHandle,
}

impl OwnedResult {
    fn error(&self) -> Result<(), Exception> {
        if self.handle.is_null() {
            return Err(Exception::from_engine("the engine gave no result".to_owned()));
        }
        // SAFETY: the handle is not null and lives; the string is copied.
        match string(unsafe { (self.api.result_error)(self.handle) }) {
            Some(message) => Err(Exception::from_engine(message)),
            None => Ok(()),
        }
    }

    /// The bytes, copied into our own memory, and the counters.
    fn take(self) -> Result<(Bytes, Counters), Exception> {
        self.error()?;
        // SAFETY: the handle lives; the buffer is `length` bytes that belong to the result.
        unsafe {
            let length = (self.api.result_length)(self.handle);
            let buffer = if length == 0 {
                ptr::null()
            } else {
                (self.api.result_buffer)(self.handle)
            };
            let bytes = if buffer.is_null() {
                Bytes::new()
            } else {
                Bytes::copy_from_slice(std::slice::from_raw_parts(buffer, length))
            };
            let counters = Counters {
                read_rows: (self.api.result_read_rows)(self.handle),
                read_bytes: (self.api.result_read_bytes)(self.handle),
                written_rows: (self.api.result_written_rows)(self.handle),
                written_bytes: (self.api.result_written_bytes)(self.handle),
                result_rows: (self.api.result_rows)(self.handle),
            };
            Ok((bytes, counters))
        }
    }
}

impl Drop for OwnedResult {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: freed once.
            unsafe { (self.api.result_destroy)(self.handle) };
        }
    }
}

/// A copy of a C string; `None` for null.
fn string(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the engine's strings end with NUL and live while their owner does.
    Some(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}
