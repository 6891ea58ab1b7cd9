//! The model pack: everything a VM needs of a model, in one flat little-endian file.
