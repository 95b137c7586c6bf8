//! Parses durations, sizes and whole numbers.

use std::time::Duration;

/// Limit on a duration: far beyond any sensible timeout, and small enough to add to any clock.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// Parses a duration such as `500ms`, `10s`, `5m` or `24h`, longer than zero and at most 720 hours.
pub fn duration(text: &str) -> Result<Duration, &'static str> {
    const WRONG: &str =
        "must be a duration such as 500ms, 10s, 5m or 24h, longer than 0 and at most 720h";
    let (number, unit) = split(text).ok_or(WRONG)?;
    let millis_each = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        _ => return Err(WRONG),
    };
    let millis = number.checked_mul(millis_each).ok_or(WRONG)?;
    let duration = Duration::from_millis(millis);
    let fits = !duration.is_zero() && duration <= LONGEST;
    if fits { Ok(duration) } else { Err(WRONG) }
}

/// Parses a number of bytes, or a size such as `64KB`, `100MB` or `2GB`, with 1 KB = 1024 bytes.
pub fn size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let bytes_each = match unit {
        "" => 1,
        "KB" => 1 << 10,
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(bytes_each)
}

/// Formats a size in the largest unit in which it is a whole number.
pub fn show_size(bytes: u64) -> String {
    for (unit, shift) in [("GB", 30), ("MB", 20), ("KB", 10)] {
        if bytes > 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    format!("{bytes} bytes")
}

/// Parses a whole number without a sign or a leading zero. YAML 1.1 reads a number with a leading
/// zero as octal.
pub fn whole(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    if !plain || (text.len() > 1 && text.starts_with('0')) {
        return None;
    }
    text.parse().ok()
}

fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    Some((whole(number)?, unit))
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn a_duration_is_a_whole_number_with_a_unit_from_1_ms_to_720_h() {
        each_row(
            [
                ("1ms", 1),
                ("500ms", 500),
                ("10s", 10_000),
                ("5m", 300_000),
                ("24h", 86_400_000),
                ("720h", 2_592_000_000),
            ],
            |(text, millis)| {
                assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
            },
        );
        each_row(
            [
                "",
                "s",
                "10",
                "0s",
                "-1s",
                "+1s",
                "01s",
                "1.5s",
                "1 s",
                "1S",
                "1d",
                "10s ",
                "721h",
                "99999999999999999h",
            ],
            |text| {
                assert!(duration(text).is_err(), "{text}");
            },
        );
    }

    #[test]
    fn a_size_is_a_whole_number_with_or_without_a_unit_and_1_kb_is_1024_bytes() {
        each_row(
            [
                ("0", 0),
                ("512", 512),
                ("64KB", 65_536),
                ("100MB", 104_857_600),
                ("2GB", 2_147_483_648),
            ],
            |(text, bytes)| {
                assert_eq!(size(text), Some(bytes), "{text}");
            },
        );
        each_row(
            [
                "",
                "MB",
                "-1",
                "1.5MB",
                "1 MB",
                "1mb",
                "1TB",
                "010",
                "99999999999999GB",
            ],
            |text| {
                assert_eq!(size(text), None, "{text}");
            },
        );
    }

    #[test]
    fn sizes_are_shown_in_the_largest_whole_unit() {
        each_row(
            [
                (0, "0 bytes"),
                (1023, "1023 bytes"),
                (8192, "8KB"),
                (1 << 30, "1GB"),
            ],
            |(bytes, text)| {
                assert_eq!(show_size(bytes), text);
            },
        );
    }
}
