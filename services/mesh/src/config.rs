//! `mesh.toml`: what the mesh is made of.
