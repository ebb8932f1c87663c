//! Directories of a comparison: those that are or were read, and those that are still to be read.

use std::sync::Arc;

use super::later::Later;
use crate::crypto::Tag;
use crate::store::Dir;
use crate::vault::rollback::memory::PlaceId;
use crate::vault::rollback::rows::{Id, Take, put_bytes};

/// A directory that is or was read.
#[derive(Clone)]
pub(super) struct Here {
    /// Held open for its sub-directories. The second value counts the open ones.
    pub open: Option<(Arc<dyn Dir>, Arc<()>)>,
    pub tag: Tag,
    pub place: PlaceId,
    pub cipher: Vec<u8>,
    pub plain: Vec<u8>,
    /// See [`Child::former`].
    pub former: Option<Vec<u8>>,
}

/// A directory in the one that is read.
pub(super) struct Inside {
    pub tag: Tag,
    /// Hash of the tag.
    pub hash: Id,
    pub place: PlaceId,
}

/// A directory that is still to be read.
pub(super) struct Child {
    pub parent: Arc<Here>,
    pub stored: Box<[u8]>,
    pub name: Box<[u8]>,
    pub inside: Inside,
    /// The plain path that it had before a change of the share's key, if a mark shows that another
    /// directory has that path now, or if it is in such a directory.
    pub former: Option<Vec<u8>>,
}

impl Child {
    fn has_parent_of(&self, other: Option<&Child>) -> bool {
        other.is_some_and(|other| Arc::ptr_eq(&self.parent, &other.parent))
    }
}

impl Later for Child {
    fn weight(&self, before: Option<&Self>) -> usize {
        let len = |path: &Option<Vec<u8>>| path.as_ref().map_or(0, Vec::len);
        let Here { cipher, plain, former, .. } = &*self.parent;
        let parent = match self.has_parent_of(before) {
            true => 0,
            false => size_of::<Here>() + cipher.len() + plain.len() + len(former),
        };
        size_of::<Self>() + self.stored.len() + self.name.len() + len(&self.former) + parent
    }

    /// The parent, as it is read back, is not held open.
    fn put(&self, before: Option<&Self>, out: &mut Vec<u8>) {
        let Child { parent, stored, name, inside, former } = self;
        let has_parent = self.has_parent_of(before);
        out.push(u8::from(has_parent));
        if !has_parent {
            let Here { tag, place, cipher, plain, former, .. } = &**parent;
            out.extend_from_slice(tag);
            out.extend_from_slice(place);
            put_bytes(out, cipher);
            put_bytes(out, plain);
            put_former(out, former.as_deref());
        }
        put_bytes(out, stored);
        put_bytes(out, name);
        inside.put(None, out);
        put_former(out, former.as_deref());
    }

    fn take(before: Option<&Self>, from: &mut Take<'_>) -> Option<Self> {
        let parent = match from.u8()? {
            0 => Arc::new(Here {
                open: None,
                tag: from.array()?,
                place: from.array()?,
                cipher: from.sized()?.to_vec(),
                plain: from.sized()?.to_vec(),
                former: take_former(from)?,
            }),
            _ => before?.parent.clone(),
        };
        Some(Child {
            parent,
            stored: from.sized()?.into(),
            name: from.sized()?.into(),
            inside: Inside::take(None, from)?,
            former: take_former(from)?,
        })
    }
}

impl Later for Inside {
    fn weight(&self, _: Option<&Self>) -> usize {
        size_of::<Self>()
    }

    fn put(&self, _: Option<&Self>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.tag);
        out.extend_from_slice(&self.hash);
        out.extend_from_slice(&self.place);
    }

    fn take(_: Option<&Self>, from: &mut Take<'_>) -> Option<Self> {
        Some(Inside { tag: from.array()?, hash: from.array()?, place: from.array()? })
    }
}

fn put_former(out: &mut Vec<u8>, former: Option<&[u8]>) {
    out.push(u8::from(former.is_some()));
    put_bytes(out, former.unwrap_or_default());
}

fn take_former(from: &mut Take<'_>) -> Option<Option<Vec<u8>>> {
    let is_some = from.u8()? != 0;
    let former = from.sized()?;
    Some(is_some.then(|| former.to_vec()))
}
