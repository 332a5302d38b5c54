//! Numbers as people read them.

use bytesize::ByteSize;

/// `1 segment`, `2,000 segments`.
pub fn count(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(number))
}

/// `12.3 MiB`.
pub fn readable(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

/// `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"]
        );
    }

    #[test]
    fn one_is_singular() {
        assert_eq!(
            [0, 1, 1_000].map(|n| count(n, "page")),
            ["0 pages", "1 page", "1,000 pages"]
        );
    }
}
