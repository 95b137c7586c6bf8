//! What something that lives long owns for others, by type.

use std::any::Any;
use std::fmt;
use std::sync::OnceLock;

/// One value of each type, made when it is first asked for and kept until the owner is gone.
///
/// Every request asks several times, and nothing is ever taken out or replaced: so it is a list
/// that only grows, which is read without a lock or a count of references.
#[derive(Default)]
pub struct TypeMap(Link);

/// Where the next value is, or will be.
type Link = OnceLock<Box<Place>>;

/// The place of a type, made before its value: whoever makes one keeps only those waiting who
/// ask for the same.
struct Place<V: ?Sized = dyn Any + Send + Sync> {
    next: Link,
    value: V,
}

impl TypeMap {
    /// The value of the type. Of several who ask at once for one that is missing, one makes it.
    pub fn get_or_init<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> &T {
        let mut link = &self.0;
        loop {
            let place = link.get_or_init(Place::of::<T>);
            if let Some(value) = place.value.downcast_ref::<OnceLock<T>>() {
                return value.get_or_init(make);
            }
            link = &place.next;
        }
    }
}

/// Of another owner: it begins with nothing.
impl Clone for TypeMap {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for TypeMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TypeMap")
    }
}

impl Place {
    fn of<T: Any + Send + Sync>() -> Box<Self> {
        Box::new(Place {
            next: Link::new(),
            value: OnceLock::<T>::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    /// As many types as there are numbers.
    struct Numbered<const N: usize>(usize);

    #[test]
    fn each_type_has_one_value_which_stays_where_it_is() {
        let map = TypeMap::default();
        let first: *const u32 = map.get_or_init(|| 1_u32);
        assert_eq!(map.get_or_init(|| "text"), &"text");
        assert_eq!(*map.get_or_init(|| 2_u64), 2);
        assert!(std::ptr::eq(first, map.get_or_init(|| 3_u32)));
        assert_eq!(*map.get_or_init(|| 3_u32), 1);
    }

    #[test]
    fn of_many_who_ask_at_once_for_many_types_one_makes_each_value() {
        const THREADS: usize = 8;
        for _ in 0..200 {
            let (map, made, start) = (
                TypeMap::default(),
                AtomicUsize::new(0),
                Barrier::new(THREADS),
            );
            let make = || made.fetch_add(1, Ordering::Relaxed);
            let ask = || {
                start.wait();
                [
                    map.get_or_init(|| Numbered::<0>(make())).0,
                    map.get_or_init(|| Numbered::<1>(make())).0,
                    map.get_or_init(|| Numbered::<2>(make())).0,
                ]
            };
            let ask_in_reverse = || {
                start.wait();
                let last = map.get_or_init(|| Numbered::<2>(make())).0;
                let middle = map.get_or_init(|| Numbered::<1>(make())).0;
                [map.get_or_init(|| Numbered::<0>(make())).0, middle, last]
            };
            let seen: Vec<[usize; 3]> = thread::scope(|scope| {
                let asking: Vec<_> = (0..THREADS)
                    .map(|n| match n % 2 {
                        0 => scope.spawn(ask),
                        _ => scope.spawn(ask_in_reverse),
                    })
                    .collect();
                asking.into_iter().map(|one| one.join().unwrap()).collect()
            });
            assert!(seen.iter().all(|values| *values == seen[0]), "{seen:?}");
            assert_eq!(made.into_inner(), 3);
        }
    }

    #[test]
    fn making_one_value_may_ask_for_another() {
        let map = TypeMap::default();
        assert_eq!(
            *map.get_or_init(|| u64::from(*map.get_or_init(|| 7_u32))),
            7
        );
    }
}
