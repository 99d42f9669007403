"""The compiled form of pFedGP: its trees and their Gaussian processes."""
