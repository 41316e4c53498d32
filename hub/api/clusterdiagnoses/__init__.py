"""Why a cluster is not Available, as rules over what the hub has on record of it: step by step, and at each what to do."""

from hub.api.clusterdiagnoses.facts import Facts, Finding, Lead, Offer, State
from hub.api.clusterdiagnoses.walk import Diagnosis, diagnose

__all__ = ["Diagnosis", "Facts", "Finding", "Lead", "Offer", "State", "diagnose"]
