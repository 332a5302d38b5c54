//! A record taken out of its request: it and all that it shares are what they were, and nothing else is there.

mod logs;
mod metrics;
mod traces;

fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
    field.extend(content);
    field
}
