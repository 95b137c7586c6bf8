mod bridging;
mod changes;
mod double;
mod properties;
mod routing;
