//! Lists of names in errors.

use std::fmt::Display;

/// Limit on the names that an error lists.
const MAX_LISTED: usize = 20;

/// Joins names with commas; names over the limit are only counted.
pub fn listed<T: Display>(names: &[T]) -> String {
    let shown = names.iter().take(MAX_LISTED).map(ToString::to_string);
    let text = shown.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX_LISTED) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// The error for a container without a live lease; `registered` are the ids of those with one.
pub fn not_registered<T: Display>(id: impl Display, registered: &[T]) -> String {
    match registered {
        [] => format!(
            "no container {id} is registered, and no other: register it with `unified-proxy container add`"
        ),
        ids => format!(
            "no container {id} is registered; registered: {}",
            listed(ids)
        ),
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn the_error_for_an_unknown_container_lists_the_registered_ones_up_to_a_limit() {
        let many: Vec<String> = (0..22).map(|number| format!("c{number}")).collect();
        each_row(
            [
                (&many[..0], "and no other: register it with"),
                (&many[..1], "; registered: c0"),
                (&many[..2], "; registered: c0, c1"),
                (&many[..20], ", c18, c19"),
                (&many[..21], ", c18, c19 and 1 more"),
                (&many[..22], ", c18, c19 and 2 more"),
            ],
            |(registered, part)| {
                let error = not_registered("nope", registered);
                assert!(
                    error.starts_with("no container nope is registered"),
                    "{error}"
                );
                assert!(error.contains(part), "{error}");
            },
        );
    }
}
