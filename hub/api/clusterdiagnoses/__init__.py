"""Diagnosis: rules about why a cluster is not Available, as steps over the hub's records, each with advice."""

from hub.api.clusterdiagnoses.facts import ClusterFacts, DiagnosisFinding, FindingState, Lead, Offer
from hub.api.clusterdiagnoses.walk import Diagnosis, diagnose

__all__ = ["ClusterFacts", "Diagnosis", "DiagnosisFinding", "FindingState", "Lead", "Offer", "diagnose"]
