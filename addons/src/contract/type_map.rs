//! A map from types to values.

use std::any::Any;
use std::sync::OnceLock;

/// One value of each type, made at its first use and kept until the map is dropped.
///
/// Every request reads several values. No value is ever removed or replaced, so that reading needs
/// neither a lock nor a reference count.
#[derive(Default)]
pub struct TypeMap(Link);

/// The next node of a linked list, if there is one yet.
type Link = OnceLock<Box<Node>>;

/// The node of a type. It is added before its value is made. So while one thread makes the value,
/// only threads that need the value of the same type wait.
struct Node<V: ?Sized = dyn Any + Send + Sync> {
    next: Link,
    value: V,
}

impl TypeMap {
    /// The value of the type. If several threads need a value that does not exist yet, one makes it
    /// and the others wait.
    pub fn get_or_init<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> &T {
        let mut link = &self.0;
        loop {
            let node = link.get_or_init(Node::of::<T>);
            if let Some(value) = node.value.downcast_ref::<OnceLock<T>>() {
                return value.get_or_init(make);
            }
            link = &node.next;
        }
    }
}

impl Node {
    fn of<T: Any + Send + Sync>() -> Box<Self> {
        Box::new(Node {
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

    /// A type for each number.
    struct Numbered<const N: usize>(usize);

    #[test]
    fn each_type_has_one_value_at_a_stable_address() {
        let map = TypeMap::default();
        let first: *const u32 = map.get_or_init(|| 1_u32);
        assert_eq!(map.get_or_init(|| "text"), &"text");
        assert_eq!(*map.get_or_init(|| 2_u64), 2);
        assert!(std::ptr::eq(first, map.get_or_init(|| 3_u32)));
        assert_eq!(*map.get_or_init(|| 3_u32), 1);
    }

    #[test]
    fn each_value_is_made_once_even_if_many_threads_need_it() {
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
    fn making_a_value_may_use_another_value() {
        let map = TypeMap::default();
        assert_eq!(
            *map.get_or_init(|| u64::from(*map.get_or_init(|| 7_u32))),
            7
        );
    }
}
