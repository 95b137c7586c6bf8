//! Applies an override to the arguments of a call: removes hidden fields, and sets defaults.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use super::settings::{Injected, OverrideRule};
use super::shapes::{InputSchema, are_arrays, declare};
use crate::contract::Denial;
use crate::json::{Node, same_name};

impl OverrideRule {
    /// Removes the hidden fields from the arguments and sets the defaults. `schema` is the tool's
    /// original `inputSchema`. Denies the call if a value above such a field is neither an object
    /// nor an array that the schema declares: a server might parse a string, or read null or an
    /// array as an object.
    pub(super) fn apply(
        &self,
        arguments: &mut Node<'_>,
        schema: Option<&str>,
        defaults: Defaults,
    ) -> Result<(), Denial> {
        let schema = InputSchema::new(schema);
        // A name with dots is a path, unless the schema declares a property of this name.
        let is_path = |field: &str| field.contains('.') && !schema.declares(field);
        let shapes_at = |path: &[&str], arrays| schema.shapes_at(path, arrays);
        let set = |arguments: &mut Node<'_>, path: &[&str], value: Option<&Node<'static>>| {
            Field::new(path, value, &shapes_at).set(arguments, 0, 0)
        };
        let mut fields: Vec<_> = self.hidden_fields().map(|(field, _)| field).collect();
        // A field near the root comes first, since values below a removed one do not matter.
        fields.sort_by_key(|field| field.matches('.').count());
        for field in fields {
            set(arguments, &[field], None)?;
            if field.contains('.') {
                let removed = set(arguments, &split(field), None);
                if is_path(field) {
                    removed?;
                }
            }
        }
        if matches!(defaults, Defaults::LeftOut) {
            return Ok(());
        }
        for (field, injected) in &self.defaults {
            let (field, value) = (&**field, injected.value(defaults));
            match is_path(field) {
                true => set(arguments, &split(field), Some(&value))?,
                false => set(arguments, &[field], Some(&value))?,
            }
        }
        Ok(())
    }
}

fn split(field: &str) -> Vec<&str> {
    field.split('.').collect()
}

/// The form of defaults.
#[derive(Clone, Copy)]
pub(super) enum Defaults {
    /// For the server.
    Sent,
    /// For a person who decides about the call: as they are written, so that they are the same for
    /// each call and have no secret of a variable.
    Written,
    /// For another gateway, which does not get them.
    LeftOut,
}

impl Injected {
    fn value(&self, form: Defaults) -> Node<'static> {
        match (self, form) {
            (Self::Value(value), _) | (Self::Variable(value), Defaults::Sent) => value.into(),
            (Self::Variable(_), _) => Node::string("${…}"),
            (Self::Uuid, Defaults::Written | Defaults::LeftOut) => Node::string("uuid()"),
            (Self::Now, Defaults::Written | Defaults::LeftOut) => Node::string("now()"),
            (Self::Uuid, Defaults::Sent) => Node::string(&Uuid::new_v4().to_string()),
            (Self::Now, Defaults::Sent) => {
                let now = OffsetDateTime::now_utc().format(&Rfc3339);
                // Formatting fails only after the year 9999.
                Node::string(&now.unwrap_or_default())
            }
        }
    }
}

/// Reads the schemas at a place in the arguments: [`InputSchema::shapes_at`].
type ShapesAt<'n, 's> = dyn Fn(&[&str], usize) -> Vec<&'n Node<'s>> + 'n;

/// A field of the arguments, and its new value; without a value, the field is removed.
struct Field<'f, 'n, 's> {
    /// The names from the root to the field; never empty.
    path: &'f [&'f str],
    value: Option<&'f Node<'static>>,
    shapes_at: &'f ShapesAt<'n, 's>,
    /// The results of `shapes_at` by the number of names and of arrays. They are the same in each
    /// element of an array.
    shapes: RefCell<HashMap<(usize, usize), Shapes<'n, 's>>>,
}

type Shapes<'n, 's> = Rc<[&'n Node<'s>]>;

impl<'f, 'n, 's> Field<'f, 'n, 's> {
    fn new(
        path: &'f [&'f str],
        value: Option<&'f Node<'static>>,
        shapes_at: &'f ShapesAt<'n, 's>,
    ) -> Self {
        Self {
            path,
            value,
            shapes_at,
            shapes: RefCell::default(),
        }
    }

    /// The schemas that may describe the value of the first `depth` names of the path, within
    /// `arrays` arrays.
    fn shapes(&self, depth: usize, arrays: usize) -> Shapes<'n, 's> {
        let mut known = self.shapes.borrow_mut();
        let shapes = known.entry((depth, arrays)).or_insert_with(|| {
            let above = self.path.get(..depth).unwrap_or_default();
            (self.shapes_at)(above, arrays).into()
        });
        Rc::clone(shapes)
    }

    /// Sets or removes the field below `node`, in each element of the arrays that the schema
    /// declares on the path. Creates missing objects for a value. `node` is the value of the first
    /// `depth` names of the path, within `arrays` arrays.
    fn set(&self, node: &mut Node<'_>, depth: usize, arrays: usize) -> Result<(), Denial> {
        let members = match node {
            Node::Object(members) => members,
            Node::Array(elements) if are_arrays(&self.shapes(depth, arrays)) => {
                let arrays = arrays.saturating_add(1);
                let mut elements = elements.iter_mut();
                return elements.try_for_each(|element| self.set(element, depth, arrays));
            }
            Node::Array(_) | Node::Scalar(_) => {
                return Err(not_an_object(self.path.get(..depth).unwrap_or_default()));
            }
        };
        let below = depth.saturating_add(1);
        let (Some(name), is_last) = (self.path.get(depth), below == self.path.len()) else {
            return Ok(());
        };
        // Some servers compare names case-insensitively, so every spelling counts that the schema
        // does not declare as another property.
        let is_named = |key: &str| {
            let is_other = || declare(&self.shapes(depth, arrays), key);
            key == *name || (same_name(key, name) && !is_other())
        };
        if is_last {
            members.retain(|(key, _)| !is_named(key));
            let value = self.value.cloned();
            members.extend(value.map(|value| ((*name).to_owned().into(), value)));
            return Ok(());
        }
        for (_, inner) in members.iter_mut().filter(|(key, _)| is_named(key)) {
            self.set(inner, below, 0)?;
        }
        if self.value.is_some() && !members.iter().any(|(key, _)| key == name) {
            let mut inner = Node::Object(Vec::new());
            self.set(&mut inner, below, 0)?;
            members.push(((*name).to_owned().into(), inner));
        }
        Ok(())
    }
}

/// Denies a value that is not an object. Names only the value, since a caller must not learn of the
/// hidden field below it.
fn not_an_object(path: &[&str]) -> Denial {
    let path = path.join(".");
    let what = format!("`{path}` in the arguments must be an object, or be left out");
    Denial::malformed(what)
        .with("argument", path)
        .rule("overrides")
        .hint("an override of the tool in mcp.yaml hides or sets a field below this argument")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use testkit::each_row;

    use super::*;

    #[test]
    fn a_schema_is_read_once_for_all_elements_of_an_array() {
        let items =
            r#"{"properties": {"inner": {"type": "array", "items": {"properties": {"key": {}}}}}}"#;
        let schema =
            format!(r#"{{"properties": {{"list": {{"type": "array", "items": {items}}}}}}}"#);
        let schema = InputSchema::new(Some(&schema));
        let value = Node::string("new");
        each_row(
            [
                r#"{}"#,
                r#"{"inner": []}"#,
                r#"{"inner": [{}, {"key": 1}]}"#,
                r#"{"INNER": [{"KEY": 1}, {"Key": 2}, {"key": 3}]}"#,
            ],
            |element| {
                let text = format!(r#"{{"list": [{}]}}"#, vec![element; 1000].join(","));
                for value in [None, Some(&value)] {
                    let reads = Cell::new(0);
                    let shapes_at = |path: &[&str], arrays| {
                        reads.set(reads.get() + 1);
                        schema.shapes_at(path, arrays)
                    };
                    let mut arguments = Node::parse(&text).unwrap();
                    let field = Field::new(&["list", "inner", "key"], value, &shapes_at);
                    assert!(field.set(&mut arguments, 0, 0).is_ok());
                    // The root, the list, its elements, `inner` and its elements.
                    assert!(reads.get() <= 5, "{} reads", reads.get());
                }
            },
        );
    }
}
