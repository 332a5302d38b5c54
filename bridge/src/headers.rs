//! The headers of a record as bytes. rdkafka's own iterator panics at a key that is not UTF-8, and any producer may send one.

use std::ffi::CStr;
use std::ptr;

use rdkafka::bindings::{
    rd_kafka_header_get_all, rd_kafka_headers_t, rd_kafka_message_headers, rd_kafka_resp_err_t,
};
use rdkafka::message::BorrowedMessage;

const OK: rd_kafka_resp_err_t = rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;
const NONE: rd_kafka_resp_err_t = rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR__NOENT;

/// A key and its value.
type Header<'a> = (&'a [u8], Option<&'a [u8]>);

/// The headers, in their order. librdkafka gives keys as C strings, so a key ends before its first zero byte.
///
/// # Errors
/// librdkafka cannot read them. It takes 100,000 at most.
#[expect(unsafe_code, reason = "librdkafka's headers have no other interface")]
pub(crate) fn headers<'a>(message: &'a BorrowedMessage<'_>) -> Result<Vec<Header<'a>>, &'static str> {
    let mut all: *mut rd_kafka_headers_t = ptr::null_mut();
    // SAFETY: the message lives as long as the borrow, and owns the headers.
    match unsafe { rd_kafka_message_headers(message.ptr(), &raw mut all) } {
        OK => {}
        NONE => return Ok(Vec::new()),
        _ => return Err("its headers are damaged, or more than 100,000"),
    }
    let mut headers = Vec::new();
    loop {
        let (mut key, mut value, mut length) = (ptr::null(), ptr::null(), 0);
        let place = headers.len();
        // SAFETY: `all` is the message's list. librdkafka writes the three results only if it returns no error.
        let found =
            unsafe { rd_kafka_header_get_all(all, place, &raw mut key, &raw mut value, &raw mut length) };
        if found != OK {
            return Ok(headers);
        }
        // SAFETY: the key is a C string, and the value has `length` bytes. Both belong to the message.
        headers.push(unsafe {
            let value = (!value.is_null()).then(|| std::slice::from_raw_parts(value.cast::<u8>(), length));
            (CStr::from_ptr(key).to_bytes(), value)
        });
    }
}
