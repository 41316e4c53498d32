"""Kubernetes' field ownership and server-side apply as pure functions over documents.

The rules are those of sigs.k8s.io/structured-merge-diff and of apimachinery's managedfields. Independent of HTTP, kinds and
clocks; used by the API server and by the hub's own services.

    structure     division of a document into fields by its schema
    fieldset      a set of fields, and its notation FieldsV1
    comparing     differences of two documents by fields
    merging       merge of an applied configuration into a live document
    selecting     the fields of a document, and a document without some fields
    holdings      `metadata.managedFields` as values
    updating      effect of a write on field owners
    applying      server-side apply: merge, removal of fields no longer applied, conflicts
    entries       a cheap form of `updating` for writers that never apply
    notation      set operations directly on FieldsV1, for `entries`
    lastapplied   migration from client-side to server-side apply
"""
