mod bridging;
mod changes;
mod double;
mod fixture;
mod properties;
mod refusals;
mod routing;
mod sessions;
