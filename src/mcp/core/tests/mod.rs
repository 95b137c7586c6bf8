mod bridging;
mod changes;
mod double;
mod fixture;
mod properties;
mod routing;
mod sessions;
