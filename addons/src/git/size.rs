//! The limit of a push, and the denial of a push that is too large.

use serde_json::json;

use crate::contract::{Code, Denial};

/// Alternatives to a push that is too large.
pub(super) const OPTIONS: [&str; 3] = [
    "Split into smaller commits and push incrementally",
    "Use Git LFS for large binary files",
    "Request per-repository limit increase",
];

/// The size limit of a push, and of a file that LFS uploads.
pub(super) struct Limit {
    pub bytes: u64,
    /// The name of the setting with the limit.
    pub rule: String,
}

impl Limit {
    /// Builds the denial of a push or a file above the limit. `size` is the announced length, or
    /// the number of bytes that have arrived.
    pub fn too_large(&self, size: u64) -> Denial {
        let details = json!({
            "push_size_bytes": size,
            "push_size_human": human(size),
            "limit_bytes": self.bytes,
            "limit_human": human(self.bytes),
        });
        let guidance = json!({
            "message": "Your push exceeds the size limit. Alternatives:",
            "options": OPTIONS,
            "example": [
                "git push origin HEAD~50:refs/heads/branch",
                "git push origin HEAD:refs/heads/branch",
            ],
        });
        Denial::new(Code::PushTooLarge, "Push size exceeds limit")
            .with("details", details)
            .with("guidance", guidance)
            .rule(self.rule.as_str())
    }
}

/// Formats a size in the largest unit that fits (1 KB is 1024 B), with at most one decimal.
pub(super) fn human(bytes: u64) -> String {
    let mut units = ["B", "KB", "MB", "GB"].into_iter().peekable();
    let mut size = bytes as f64;
    loop {
        let unit = units.next().unwrap_or_default();
        if size < 1024.0 || units.peek().is_none() {
            let digits = format!("{size:.1}");
            return format!("{} {unit}", digits.strip_suffix(".0").unwrap_or(&digits));
        }
        size /= 1024.0;
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn sizes_are_formatted_in_the_largest_unit_that_fits() {
        each_row(
            [
                (0, "0 B"),
                (1023, "1023 B"),
                (1536, "1.5 KB"),
                (250_000_000, "238.4 MB"),
                (209_715_200, "200 MB"),
                (3 << 40, "3072 GB"),
            ],
            |(bytes, text)| {
                assert_eq!(human(bytes), text);
            },
        );
    }

    #[test]
    fn the_denial_of_a_large_push_has_its_size_and_alternatives() {
        let limit = Limit {
            bytes: 209_715_200,
            rule: String::new(),
        };
        let json = limit.too_large(250_000_000).to_json();
        assert_eq!(json["error"], "Push size exceeds limit");
        assert_eq!(json["details"]["push_size_human"], "238.4 MB");
        assert_eq!(json["details"]["limit_bytes"], 209_715_200);
        assert_eq!(json["guidance"]["options"][1], OPTIONS[1]);
        let example = "git push origin HEAD~50:refs/heads/branch";
        assert_eq!(json["guidance"]["example"][0], example);
    }
}
