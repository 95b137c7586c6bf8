mod bridging;
mod changes;
mod double;
mod fixture;
mod levels;
mod properties;
mod routing;
mod sessions;
