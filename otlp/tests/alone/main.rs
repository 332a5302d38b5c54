//! Extracting a record keeps it and everything it shares unchanged, and nothing else.

mod logs;
mod metrics;
mod traces;

fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
    field.extend(content);
    field
}
