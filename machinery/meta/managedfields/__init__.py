"""Kubernetes' field ownership and server-side apply as pure functions over documents.

The rules are those of sigs.k8s.io/structured-merge-diff and of apimachinery's managedfields. The package does not depend on
HTTP, kinds or clocks. The API server and the hub's own services use it.

    structure       division of a document into fields by its schema
    fieldset        operations on sets of fields in the notation FieldsV1
    comparing       which fields differ between two documents, which fields a document has, removal of fields
    ownership       `metadata.managedFields`, and how a write changes the owners of fields
    applying        server-side apply: merge, removal of fields that are no longer applied, conflicts
    configurations  checks of an applied configuration, and its annotation of client-side apply
"""
