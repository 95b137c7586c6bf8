//! The keys of a mapping that several readers may share.

use std::num::NonZeroU32;

use super::report::{FileReport, Place};
use super::setting::Setting;
use super::tree::{Mapping, Node, Value, key_path};

/// A mapping with fixed keys. Several readers may each claim some of them.
/// [`Document::refuse_unknown_keys`] reports the keys that no reader claimed.
///
/// [`Document::refuse_unknown_keys`]: super::Document::refuse_unknown_keys
pub struct Fields<'a> {
    /// `None` if the mapping, and with it every key, is absent.
    mapping: Option<&'a Mapping>,
    place: Place,
    path: String,
    report: FileReport<'a>,
}

impl<'a> Fields<'a> {
    pub(super) fn absent(report: FileReport<'a>, path: String) -> Self {
        Self {
            mapping: None,
            place: Place { line: 0, column: 0 },
            path,
            report,
        }
    }

    /// Whether the mapping is in the file.
    pub(super) fn is_present(&self) -> bool {
        self.mapping.is_some()
    }

    /// Claims a key. Returns its value if the key is present.
    pub fn find(&self, key: &'static str) -> Option<Setting<'a>> {
        let mapping = self.mapping?;
        mapping.claim(key);
        let (_, node) = mapping
            .entries
            .iter()
            .find(|(entry, _)| entry.name == key)?;
        Some(Setting {
            node,
            path: key_path(&self.path, key),
            report: self.report,
        })
    }

    /// Whether the mapping has a key. Does not claim it.
    pub fn has(&self, key: &str) -> bool {
        let mapping = self.mapping.iter();
        let mut keys = mapping.flat_map(|mapping| &mapping.entries);
        keys.any(|(entry, _)| entry.name == key)
    }

    /// A key's value. Reports an error and returns `None` if the key is absent.
    pub fn need(&self, key: &'static str) -> Option<Setting<'a>> {
        let found = self.find(key);
        if found.is_none() {
            self.refuse(key, "is missing");
        }
        found
    }

    /// A key's value, or the default if the value is absent or wrong.
    pub fn or<T>(
        &self,
        key: &'static str,
        default: T,
        read: impl FnOnce(Setting<'a>) -> Option<T>,
    ) -> T {
        self.find(key).and_then(read).unwrap_or(default)
    }

    /// A key's number from 1 to a million, or the default if the number is absent or wrong.
    pub fn count(&self, key: &'static str, default: NonZeroU32) -> NonZeroU32 {
        self.or(key, default, |at| at.count())
    }

    /// A key's value; `None` if the value is absent, `null`, an empty text or wrong.
    pub fn optional<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(Setting<'a>) -> Option<T>,
    ) -> Option<T> {
        self.find(key).filter(|at| !at.is_nothing()).and_then(read)
    }

    /// The items of a list; empty if the key is absent or its value is not a list.
    pub fn list<T>(&self, key: &'static str, read: impl FnMut(Setting<'a>) -> Option<T>) -> Vec<T> {
        self.or(key, Vec::new(), |at| at.list(read))
    }

    /// A mapping below a key. If it is absent or wrong, all of its keys are absent.
    pub fn section(&self, key: &'static str) -> Fields<'a> {
        let fields = self.find(key).and_then(|at| at.fields());
        fields.unwrap_or_else(|| Fields::absent(self.report, key_path(&self.path, key)))
    }

    /// Reports an error about a key, with the line and column of the mapping.
    pub fn refuse(&self, key: &str, message: impl Into<String>) {
        self.report
            .refuse(self.place, &key_path(&self.path, key), message);
    }
}

/// Reports the unclaimed keys of each mapping with fixed keys, at the node and below it. Does not
/// report keys below an unclaimed key.
pub(super) fn refuse_unknown_keys(node: &Node, path: &str, report: FileReport<'_>) {
    match &node.value {
        Value::Scalar(_) | Value::Refused => {}
        Value::Sequence(items) => {
            for (index, item) in items.iter().enumerate() {
                refuse_unknown_keys(item, &format!("{path}[{index}]"), report);
            }
        }
        Value::Mapping(mapping) => {
            let claimed = mapping.claimed.borrow();
            for (key, value) in &mapping.entries {
                let path = key_path(path, &key.name);
                match &*claimed {
                    Some(claimed) if !claimed.contains(&key.name.as_str()) => {
                        report.refuse(key.place, &path, unknown_key(&key.name, claimed));
                    }
                    _ => refuse_unknown_keys(value, &path, report),
                }
            }
        }
    }
}

fn unknown_key(name: &str, known: &[&str]) -> String {
    let nearest = known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(name, known), known))
        .min();
    match nearest {
        Some((distance, nearest)) if distance <= nearest.len() / 3 => {
            format!("unknown key; did you mean {nearest}?")
        }
        _ => format!("unknown key; known here: {}", known.join(", ")),
    }
}

impl<'a> Setting<'a> {
    /// The value as a mapping with fixed keys.
    pub fn fields(&self) -> Option<Fields<'a>> {
        let Value::Mapping(mapping) = &self.node.value else {
            return self.wrong_type("a mapping");
        };
        mapping.claimed.borrow_mut().get_or_insert_default();
        Some(Fields {
            mapping: Some(mapping),
            place: self.node.place,
            path: self.path.clone(),
            report: self.report,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::contract::settings::Files;
    use crate::fixtures::read_files;

    fn errors(proxy: &str, read: impl FnOnce(&Files<'_>)) -> Vec<String> {
        let text = format!("version: 1\n{proxy}\n");
        let errors = read_files(&[("proxy.yaml", &text)], read).err();
        errors
            .iter()
            .flat_map(|text| text.lines().map(str::to_owned))
            .collect()
    }

    fn port(files: &Files<'_>) {
        files
            .proxy
            .fields()
            .section("shop")
            .count("port", super::NonZeroU32::MIN);
    }

    fn till(files: &Files<'_>) {
        files
            .proxy
            .fields()
            .section("shop")
            .count("till", super::NonZeroU32::MIN);
    }

    #[test]
    fn a_mapping_may_have_keys_of_several_readers() {
        let both = |files: &Files<'_>| {
            port(files);
            till(files);
        };
        assert_eq!(errors("shop: { port: 1, till: 2 }", both), [""; 0]);
        assert_eq!(
            errors("shop: { prt: 1, till: 2, shelf: 3 }\nshp: {}", both),
            [
                "proxy.yaml:2:9: shop.prt: unknown key; did you mean port?",
                "proxy.yaml:2:26: shop.shelf: unknown key; known here: port, till",
                "proxy.yaml:3:1: shp: unknown key; did you mean shop?",
            ]
        );
        assert_eq!(
            errors("shop: { port: 1, till: 2 }", port),
            ["proxy.yaml:2:18: shop.till: unknown key; known here: port"]
        );
    }

    #[test]
    fn an_error_that_two_readers_find_is_reported_once() {
        let twice = |files: &Files<'_>| {
            port(files);
            port(files);
        };
        assert_eq!(
            errors("shop: []", twice),
            ["proxy.yaml:2:7: shop: must be a mapping"]
        );
        assert_eq!(
            errors("shop: { port: 0 }", twice),
            ["proxy.yaml:2:15: shop.port: must be a whole number from 1 to 1000000"]
        );
    }

    #[test]
    fn keys_below_an_unknown_key_are_not_reported() {
        assert_eq!(
            errors("shelf: { a: { b: 1 } }", port),
            ["proxy.yaml:2:1: shelf: unknown key; known here: version, shop"]
        );
    }
}
